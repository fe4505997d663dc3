"""Owns the scan of one tool call, a JSON object that arrives character by character.

A call is `{"name": …, "arguments": {…}}`, its keys in any order. `parameters` is the same as
`arguments`; other keys are skipped. The call is known once its name is: from there on its arguments
go out as they come, as raw JSON text; arguments that came before the name go out with it.

RFC 8259 is kept strictly, so that what has gone out is always the beginning of some JSON text. The one
exception: line ends and other control characters stand raw in the strings of some models; they go out
escaped. Arguments in a JSON string are unwrapped; none at all, `null` and `""` are `{}`.

Scans are coroutines that get one character a step: whatever the text's cuts, they see the same. Inside
a string they also take a `PLAIN` run of characters in one step, since most of a call is that.
"""

import json
import re
from collections.abc import Callable, Generator
from typing import Final, Protocol, TypeVar

MAX_DEPTH: Final = 64
"""Deepest nesting of the arguments; deeper ones end the call."""

SPACES: Final = " \t\n\r"
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What a tool may be called in every API that shows calls."""

PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]+')
"""Characters that mean themselves in a string."""

_ARGUMENTS: Final = ("arguments", "parameters")
_CLOSERS: Final = {"{": "}", "[": "]"}
_LITERALS: Final = {"t": "true", "f": "false", "n": "null"}
_ESCAPES: Final = dict(zip('"\\/bfnrt', '"\\/\b\f\n\r\t', strict=True))
_SHORT: Final = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_DIGITS: Final = frozenset("0123456789")
_REPLACEMENT: Final = "\ufffd"

_NUMBER: Final[dict[str, dict[str, str]]] = {
    "start": {"-": "minus", "0": "zero", "1": "whole"},
    "minus": {"0": "zero", "1": "whole"},
    "zero": {".": "point", "e": "e"},
    "whole": {"0": "whole", "1": "whole", ".": "point", "e": "e"},
    "point": {"0": "fraction", "1": "fraction"},
    "fraction": {"0": "fraction", "1": "fraction", "e": "e"},
    "e": {"-": "sign", "0": "power", "1": "power"},
    "sign": {"0": "power", "1": "power"},
    "power": {"0": "power", "1": "power"},
}
_NUMBER_ENDS: Final = frozenset({"zero", "whole", "fraction", "power"})

_T = TypeVar("_T")
Scan = Generator[bool, str, _T]
"""Gets a character a step, or a plain run where it has yielded True."""

Put = Callable[[str], object]


class NotACall(Exception):
    """What comes is no call, or not any more; the character in hand is the first that does not fit."""


class CallSink(Protocol):
    """Where the parts of calls go."""

    def begin(self, name: str, arguments: str) -> None:
        """Take the name of a new call, and arguments that came before it. The character in hand is not
        part of them. Raises NotACall for a call that is not to be.
        """
        ...

    def argue(self, text: str) -> None:
        """Take more of its arguments."""
        ...

    def end(self) -> None:
        """Take that it is whole."""
        ...


def scan_call(char: str, sink: CallSink) -> Scan[None]:
    """Scan a call whose first character is `char`, up to its last one."""
    if char != "{":
        raise NotACall
    begun = argued = False
    early: list[str] = []
    char = yield from skip_spaces((yield False))
    while char != "}":
        key, char = yield from _plain(char)
        if (yield from skip_spaces(char)) != ":":
            raise NotACall
        char = yield from skip_spaces((yield False))
        if key == "name" and not begun:
            name, char = yield from _plain(char)
            if NAME.fullmatch(name) is None:
                raise NotACall
            sink.begin(name, "".join(early))
            begun = True
        elif key in _ARGUMENTS and not argued and char != "n":
            argued = True
            put: Put = sink.argue if begun else early.append
            char = yield from (_unwrapped(char, put) if char == '"' else _value(char, put))
        else:
            char = yield from _value(char, _nowhere)
        char = yield from skip_spaces(char)
        if char == ",":
            char = yield from skip_spaces((yield False))
            if char == "}":
                raise NotACall
        elif char != "}":
            raise NotACall
    if not begun:
        raise NotACall
    if not argued:
        sink.argue("{}")
    sink.end()


def skip_spaces(char: str) -> Scan[str]:
    """Return the first character from `char` on that is no white space."""
    while char in SPACES:
        char = yield False
    return char


def _nowhere(text: str) -> None:
    """Drop what is skipped."""


def _unwrapped(char: str, put: Put) -> Scan[str]:
    """Scan a string that holds the arguments as JSON text."""
    is_empty = True
    high = ""
    while True:
        char = yield True
        if char == '"':
            break
        text = char
        if char == "\\":
            text = yield from _escape()
        if high:
            is_pair = "\udc00" <= text <= "\udfff"
            text = _joined(high, text) if is_pair else _REPLACEMENT + text
            high = ""
        if "\ud800" <= text[-1] <= "\udbff":
            high = text[-1]
            text = text[:-1]
        if text:
            is_empty = False
            put(text if not "\udc00" <= text[-1] <= "\udfff" else text[:-1] + _REPLACEMENT)
    if high:
        put(_REPLACEMENT)
    elif is_empty:
        put("{}")
    return (yield False)


def _joined(high: str, low: str) -> str:
    return (high + low).encode("utf-16", "surrogatepass").decode("utf-16")


def _escape() -> Scan[str]:
    """Scan an escape after its backslash; return its character, perhaps half a pair."""
    char = yield False
    if char != "u":
        if char not in _ESCAPES:
            raise NotACall
        return _ESCAPES[char]
    digits = ""
    for _ in range(4):
        char = yield False
        if char not in _HEX:
            raise NotACall
        digits += char
    return chr(int(digits, 16))


def _plain(char: str) -> Scan[tuple[str, str]]:
    """Scan a key or a name; return its text and the character after it."""
    parts: list[str] = []
    char = yield from _string(char, parts.append)
    text: str = json.loads("".join(parts))
    return text, char


def _string(char: str, put: Put) -> Scan[str]:
    """Scan a string as it stands; return the character after it."""
    if char != '"':
        raise NotACall
    put(char)
    while True:
        char = yield True
        if char == "\\":
            put(char)
            char = yield False
            if char == "u":
                put(char)
                for _ in range(4):
                    char = yield False
                    if char not in _HEX:
                        raise NotACall
                    put(char)
            elif char in _ESCAPES:
                put(char)
            else:
                raise NotACall
        elif char < " ":
            put(_SHORT.get(char) or f"\\u{ord(char):04x}")
        else:
            put(char)
            if char == '"':
                return (yield False)


def _scalar(char: str, put: Put) -> Scan[str]:
    """Scan a literal or a number; return the character after it."""
    if char in _LITERALS:
        for expected in _LITERALS[char]:
            if char != expected:
                raise NotACall
            put(char)
            char = yield False
        return char
    state = "start"
    while True:
        kind = "1" if char in _DIGITS and char != "0" else "e" if char == "E" else char
        if kind == "+" and state == "e":
            kind = "-"
        following = _NUMBER[state].get(kind)
        if following is None:
            break
        state = following
        put(char)
        char = yield False
    if state not in _NUMBER_ENDS:
        raise NotACall
    return char


def _spaces(char: str, put: Put) -> Scan[str]:
    while char in SPACES:
        put(char)
        char = yield False
    return char


def _key(char: str, put: Put) -> Scan[str]:
    """Scan a key and its colon; return the first character of its value."""
    char = yield from _string(char, put)
    char = yield from _spaces(char, put)
    if char != ":":
        raise NotACall
    put(char)
    return (yield from _spaces((yield False), put))


def _value(char: str, put: Put) -> Scan[str]:
    """Scan any value as it stands; return the character after it."""
    closers: list[str] = []
    while True:
        if char in _CLOSERS:
            if len(closers) == MAX_DEPTH:
                raise NotACall
            put(char)
            closers.append(_CLOSERS[char])
            char = yield from _spaces((yield False), put)
            if char != closers[-1]:
                if closers[-1] == "}":
                    char = yield from _key(char, put)
                continue
        elif char == '"':
            char = yield from _string(char, put)
        else:
            char = yield from _scalar(char, put)
        while closers:
            char = yield from _spaces(char, put)
            if char == closers[-1]:
                closers.pop()
                put(char)
                char = yield False
            elif char == ",":
                put(char)
                char = yield from _spaces((yield False), put)
                if closers[-1] == "}":
                    char = yield from _key(char, put)
                break
            else:
                raise NotACall
        else:
            return char
