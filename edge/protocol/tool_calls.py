"""Owns the reading of an output's text as text and tool calls, in every form that models write calls in.

`hermes`: `<tool_call>`, a call, `</tool_call>`, any number and text around; a block may hold several
calls or an array of them. `mistral`: `[TOOL_CALLS]` and such an array. `llama3`: the whole text is a
call, perhaps after `<|python_tag|>`, several set apart by `;`. Forced: the whole text is one call.

What is the same for all:

1. However the text is cut, the pieces say the same.
2. What turns out to be no call is text, verbatim; then a mark later in it may begin one.
3. White space that belongs to a form is no text: before a mark (at most `MAX_SPACES`), after it, after
   a call.
4. A call that breaks off has the arguments as far as they came. What does not fit them is text again,
   but at the text's end the rest of the form is dropped.
5. A call beyond `MAX_CALLS` is text. After the last one asked for (`most`) all is dropped.

Nothing is kept but what is undecided, which the output's own length bounds.
"""

import enum
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from edge.protocol.call_scan import PLAIN, SPACES, NotACall, Scan, scan_call, skip_spaces

MAX_CALLS: Final = 64
"""As many as one message of a conversation may hold."""

MAX_SPACES: Final = 256

_END: Final = "</tool_call>"
_SLICE: Final = 512
"""Characters."""


class Form(enum.Enum):
    """How calls are written; the value is that of `tailrace.v1.Model.tool_format`, if it has one."""

    HERMES = "hermes"
    LLAMA3 = "llama3"
    MISTRAL = "mistral"
    FORCED = "forced"


@dataclass(frozen=True, slots=True)
class Text:
    """More text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call, of which arguments may follow until its end."""

    index: int
    """From 0, in the order they come."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of a call's arguments."""

    index: int
    text: str
    """JSON text: joined it is a whole object, or the beginning of one where the output broke off."""


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call's end."""

    index: int
    is_whole: bool = True
    """Whether it is whole; else it broke off."""


Piece = Text | CallBegun | Arguments | CallEnded


class ToolCallReader:
    """Reads one output."""

    def __init__(self, form: Form, *, names: Collection[str] = (), most: int | None = None) -> None:
        """`names`: of the tools; `llama3`, which marks no calls, takes only these for calls.

        `most`: after so many calls all is dropped.
        """
        self._sink = _Sink(frozenset(names) if form is Form.LLAMA3 else None, most or MAX_CALLS)
        self._most = most
        self._mark = {Form.HERMES: "<tool_call>", Form.MISTRAL: "[TOOL_CALLS]"}.get(form, "")
        self._form = form
        self._scan: Scan[None] | None = None
        self._held = ""
        """The end of the text: white space and the beginning of a mark."""
        self._after_call = False
        if not self._mark:
            self._begin(_bare(self._sink, form))

    @property
    def calls(self) -> int:
        """How many calls have begun."""
        return self._sink.count

    @property
    def is_closed(self) -> bool:
        """Whether the last call that was asked for has ended."""
        return self._sink.count == self._most and not self._sink.is_open

    def take(self, text: str) -> list[Piece]:
        """Return what more of the output says."""
        if self._is_text(text):
            return [Text(text)]
        waiting = _slices(text)
        while waiting and not self.is_closed:
            text = waiting.pop()
            waiting += _slices(self._outside(text) if self._scan is None else self._inside(text))
        return self._sink.taken()

    def _is_text(self, text: str) -> bool:
        """Return whether all of it is known to be text at a glance, as most is."""
        if self._scan is not None or self._held or self._after_call or not text or self.is_closed:
            return False
        return not self._mark or (self._mark[0] not in text and text[-1] not in SPACES)

    def finish(self) -> list[Piece]:
        """Return what is left at the output's end."""
        if self._scan is not None and not self.is_closed:
            raw = "".join(self._sink.raw)
            is_rest = self._sink.in_block and _END.startswith(raw.strip(SPACES + ",;]"))
            if not self._sink.is_open and not is_rest:
                self._sink.say(self._held + raw)
        elif not self.is_closed:
            self._sink.say(self._held)
        if self._sink.is_open:
            self._sink.end(is_whole=False)
        self._scan = None
        self._held = ""
        return self._sink.taken()

    def _outside(self, text: str) -> str:
        """Take text up to a mark; return what follows it."""
        if not self._mark:
            self._sink.say(text.lstrip(SPACES) if self._after_call else text)
            self._after_call = self._after_call and not text.strip(SPACES)
            return ""
        if self._after_call:
            text = text.lstrip(SPACES)
            self._after_call = not text
        text = self._held + text
        at = text.find(self._mark)
        kept = self._undecided(text) if at < 0 else _trailing_spaces(text, at)
        self._sink.say(text[:kept])
        if at < 0:
            self._held = text[kept:]
            return ""
        self._held = text[kept : at + len(self._mark)]
        self._begin(_block(self._sink) if self._form is Form.HERMES else _list(self._sink))
        return text[at + len(self._mark) :]

    def _undecided(self, text: str) -> int:
        """Return where the end begins that may belong to a mark."""
        at = text.rfind(self._mark[0])  # which no mark has twice
        if at < 0 or not self._mark.startswith(text[at:]):
            at = len(text)
        return _trailing_spaces(text, at)

    def _inside(self, text: str) -> str:
        """Take characters of calls; return what follows them."""
        scan, sink = self._scan, self._sink
        assert scan is not None
        at, end = 0, len(text)
        takes_run = False
        while at < end:
            run = PLAIN.match(text, at) if takes_run else None
            char = text[at] if run is None else run[0]
            at += len(char)
            sink.raw.append(char)
            try:
                takes_run = scan.send(char)
            except StopIteration:
                self._leave()
                return text[at:]
            except NotACall:
                return self._give_up() + text[at:]
            if self._most is not None and self.is_closed:
                return ""
        return ""

    def _begin(self, scan: Scan[None]) -> None:
        next(scan)
        self._scan = scan
        self._sink.raw.clear()
        self._sink.in_block = False

    def _leave(self) -> None:
        self._scan = None
        self._held = ""
        self._after_call = True

    def _give_up(self) -> str:
        """Take what was held for text; return what may yet be more than that."""
        sink = self._sink
        held, raw, was_call = self._held, "".join(sink.raw), sink.in_block
        if sink.is_open:
            sink.end(is_whole=False)
        self._leave()
        self._after_call = was_call
        if not was_call:
            sink.say(held)
        return raw


class _Sink:
    """Gathers pieces, and keeps the raw text that none of them says yet."""

    __slots__ = ("_arguments", "_most", "_names", "_pieces", "_texts", "count", "in_block", "is_open", "raw")

    def __init__(self, names: frozenset[str] | None, most: int) -> None:
        self._names = names
        self._most = most
        self._pieces: list[Piece] = []
        self._texts: list[str] = []
        self._arguments: list[str] = []
        self.raw: list[str] = []
        self.count = 0
        self.is_open = False
        self.in_block = False
        """Whether a call has begun since the last mark."""

    def say(self, text: str) -> None:
        if text:
            self._texts.append(text)

    def begin(self, name: str, arguments: str) -> None:
        if self.count == self._most or (self._names is not None and name not in self._names):
            raise NotACall
        self.raw[:-1] = ()  # the character in hand follows the name
        self._flush()
        self._pieces.append(CallBegun(self.count, name))
        self.count += 1
        self.is_open = self.in_block = True
        if arguments:
            self._arguments.append(arguments)

    def argue(self, text: str) -> None:
        self._arguments.append(text)
        self.raw.clear()

    def end(self, *, is_whole: bool = True) -> None:
        self._flush()
        self._pieces.append(CallEnded(self.count - 1, is_whole))
        self.raw.clear()
        self.is_open = False

    def taken(self) -> list[Piece]:
        """Return all pieces since the last time."""
        self._flush()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _flush(self) -> None:
        if self._texts:
            self._pieces.append(Text("".join(self._texts)))
            self._texts.clear()
        if self._arguments:
            self._pieces.append(Arguments(self.count - 1, "".join(self._arguments)))
            self._arguments.clear()


def _slices(text: str) -> list[str]:
    """Return `text` in slices, the first one last: what is read again is copied, so it must be short."""
    return [text[at : at + _SLICE] for at in range(0, len(text), _SLICE)][::-1]


def _trailing_spaces(text: str, end: int) -> int:
    """Return where the white space before `end` begins, or the last `MAX_SPACES` of it."""
    if end and text[end - 1] not in SPACES:
        return end
    least = max(0, end - MAX_SPACES)
    return least + len(text[least:end].rstrip(SPACES))


def _after_call(sink: _Sink) -> Scan[str]:
    """Return the first character after a call that is no white space."""
    char = yield False
    while char in SPACES:
        sink.raw.clear()
        char = yield False
    return char


def _array(sink: _Sink) -> Scan[None]:
    """Scan an array of calls after its bracket."""
    while True:
        char = yield from skip_spaces((yield False))
        yield from scan_call(char, sink)
        char = yield from _after_call(sink)
        if char == "]":
            return
        if char != ",":
            raise NotACall


def _rest(char: str, mark: str) -> Scan[None]:
    """Scan a mark whose first character must be `char`."""
    for at, expected in enumerate(mark):
        if at:
            char = yield False
        if char != expected:
            raise NotACall


def _block(sink: _Sink) -> Scan[None]:
    """Scan what follows `<tool_call>`."""
    char = yield from skip_spaces((yield False))
    if char == "[":
        yield from _array(sink)
        char = yield from _after_call(sink)
    else:
        while True:
            yield from scan_call(char, sink)
            char = yield from _after_call(sink)
            if char != "{":
                break
    yield from _rest(char, _END)


def _list(sink: _Sink) -> Scan[None]:
    """Scan what follows `[TOOL_CALLS]`."""
    char = yield from skip_spaces((yield False))
    if char != "[":
        raise NotACall
    yield from _array(sink)


def _bare(sink: _Sink, form: Form) -> Scan[None]:
    """Scan a text that is nothing but calls."""
    char = yield from skip_spaces((yield False))
    if form is Form.LLAMA3 and char == "<":
        yield from _rest(char, "<|python_tag|>")
        char = yield from skip_spaces((yield False))
    while True:
        yield from scan_call(char, sink)
        char = yield from _after_call(sink)
        if form is Form.FORCED:
            raise NotACall
        if char == ";":
            char = yield from skip_spaces((yield False))
