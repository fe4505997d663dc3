"""Scripts: what a prompt makes the scripted engine do.

A prompt that holds `script:` and a JSON object is generated from that object; any other gets words
drawn from a hash of the context, one after another as a model would: the next token depends on the
bytes so far and nothing else. So either text goes on exactly where it was cut, by ids or by text.

In a chat the last script before the assistant's turn counts, and the turn is what was generated so
far. In a raw text the first script counts, and what follows its closing brace was generated. A
script does not change with sampling.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from service.adapters.engines.scripted import tokens
from service.domain.request import Sampling
from service.ports.engine import PromptError

MARK = "script:"


class Piece(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One entry of `pieces` that is more than a string."""

    text: str = ""
    hex: str = ""
    """Bytes in hexadecimal, after `text`."""
    count: int = 1
    """Sampled tokens it stands for; other than 1 it has no token id."""


class Script(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What to generate. `k` is a place in the whole text, continuations included."""

    pieces: list[str | Piece] = []
    """One token each."""
    hex: list[str] = []
    """More pieces, as bytes in hexadecimal, after `pieces`."""
    repeat: int = 1
    """How often all pieces are said."""
    delay_ms: float | list[float] | None = None
    """Before each token; from a list by place, the last one for all that follow."""
    first_delay_ms: float = 0
    """Before the first token, on top."""
    prefill_ms: float = 0
    """How long the whole prefill takes."""
    prefill_tokens: int | None = None
    """Prompt tokens a prefill batch; None for the engine's setting."""
    fail_after: int | None = None
    """End as FAILED after k pieces."""
    fail_message: str = "the script failed"
    fail_repeat: int = 1
    """How often the message is said, to make it long."""
    invalid: bool = False
    """The failure is the job's own fault."""
    raise_after: int | None = None
    """Break inside the engine's loop after k pieces."""
    oom: bool = False
    """End as FAILED in the prefill, as an engine without memory does."""
    crash_after: int | None = None
    """Kill the process after k pieces."""
    crash_times: int | None = None
    """How often; counted in the engine's `crash_file`. None: always."""
    hang_after: int | None = None
    """Stop the whole engine after k pieces, for ever."""
    cancel_takes_ms: float = 0
    """How long the slot stays taken after a cancel."""
    end: str = "eos"
    """`eos` or `length`: how it ends when all is said."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token to say."""

    id: int | None
    data: bytes
    count: int = 1


class ScriptSource:
    """Say a script's pieces from a place on."""

    def __init__(self, script: Script, said: bytes) -> None:
        self._pieces = _pieces(script)
        self._total = len(self._pieces) * max(script.repeat, 0)
        self.place, self._rest = _locate(self._pieces, self._total, said)

    def next(self, *, may_end: bool) -> Token | None:
        """Return the next token; None at the end, if it may end. Past it all is said again."""
        if not self._pieces or (may_end and self.place >= self._total and not self._rest):
            return None
        if self._rest:
            token, self._rest = Token(None, self._rest), b""
            return token
        at = self.place % len(self._pieces)
        self.place += 1
        data, count = self._pieces[at]
        return Token(tokens.PIECE_BASE + at if count == 1 else None, data, count)


class WordSource:
    """Say words that depend on the context, each with its place as a number."""

    def __init__(self, context: bytes, total: int, sampling: Sampling) -> None:
        self.place = tokens.word_position(context)
        self._total = total
        self._hash = zlib.crc32(context)
        seeded = sampling.temperature > 0 and sampling.seed is not None
        self._seed = zlib.crc32(str(sampling.seed).encode()) if seeded else 0
        self._bias = dict(sampling.logit_bias)

    def next(self, *, may_end: bool) -> Token | None:
        """Return the next token; None after the last word, if it may end."""
        if may_end and self.place >= self._total:
            return None
        position = (self.place + 1) % tokens.POSITIONS
        draw = ((self._hash ^ self._seed) * 0x9E3779B1 >> 13) % len(tokens.WORDS)
        token_id = self._biased(draw, position) if self._bias else tokens.word_id(draw, position)
        data = tokens.decode((token_id,))
        if token_id >= tokens.WORD_BASE:
            self.place = position
        self._hash = zlib.crc32(data, self._hash)
        return Token(token_id, data)

    def _biased(self, draw: int, position: int) -> int:
        """Forced above 0 (the highest wins), banned below 0: no other weights are known here."""
        forced = max(self._bias.items(), key=lambda item: item[1])
        if forced[1] > 0 and forced[0] != tokens.EOS:
            return forced[0]
        size = len(tokens.WORDS)
        drawn = [tokens.word_id((draw + i) % size, position) for i in range(size)]
        return next((i for i in drawn if self._bias.get(i, 0.0) >= 0), drawn[0])


Source = ScriptSource | WordSource


@dataclass(frozen=True, slots=True)
class Reading:
    """A context, understood."""

    script: Script
    """The default one where the prompt has none."""
    source: Source


def read(token_ids: Sequence[int], sampling: Sampling, word_total: int) -> Reading:
    """Find the script in a context and the place in it. Raises `PromptError` for a bad one."""
    head, said_ids = _split(token_ids)
    text = head.decode("utf-8", "surrogateescape")
    chat = said_ids is not None
    at = text.rfind(MARK + "{") if chat else text.find(MARK + "{")
    if at < 0:
        return Reading(Script(), WordSource(tokens.decode(token_ids), word_total, sampling))
    script, end = _parse(text, at + len(MARK))
    pieces = [data for data, _ in _pieces(script)]
    if said_ids is None:
        generated = _first_generated(token_ids)
        said = text[end:].encode("utf-8", "surrogateescape")
        said += tokens.decode(token_ids[generated:], pieces)
    else:
        said = tokens.decode(said_ids, pieces)
    return Reading(script, ScriptSource(script, said))


def _split(token_ids: Sequence[int]) -> tuple[bytes, Sequence[int] | None]:
    """Return the prompt's bytes and the ids of the assistant's open turn, None in a raw text."""
    opening = (tokens.TURN_START, *b"assistant\n")
    ids = tuple(token_ids)
    for i in range(len(ids) - len(opening), -1, -1):
        if ids[i] == tokens.TURN_START and ids[i : i + len(opening)] == opening:
            return tokens.decode(ids[:i]), ids[i + len(opening) :]
    return tokens.decode(ids[: _first_generated(ids)]), None


def _first_generated(token_ids: Sequence[int]) -> int:
    """Return where ids begin that no prompt text has."""
    return next((n for n, i in enumerate(token_ids) if i >= tokens.PIECE_BASE), len(token_ids))


def _parse(text: str, start: int) -> tuple[Script, int]:
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
        script = msgspec.convert(value, Script)
        _pieces(script)
    except ValueError as error:  # msgspec's and json's errors are ValueErrors
        raise PromptError(f"the script cannot be read: {error}") from error
    if script.end not in {"eos", "length"}:
        raise PromptError("the script's end must be eos or length")
    return script, end


def _pieces(script: Script) -> list[tuple[bytes, int]]:
    entries: Iterable[str | Piece] = [*script.pieces, *(Piece(hex=h) for h in script.hex)]
    pieces: list[tuple[bytes, int]] = []
    for entry in entries:
        if isinstance(entry, str):
            pieces.append((entry.encode("utf-8", "surrogateescape"), 1))
        else:
            data = entry.text.encode("utf-8", "surrogateescape") + bytes.fromhex(entry.hex)
            pieces.append((data, entry.count))
    return pieces


def _locate(pieces: list[tuple[bytes, int]], total: int, said: bytes) -> tuple[int, bytes]:
    """Return the place after `said`, and the rest of a piece that it cuts."""
    if not said or not any(data for data, _ in pieces):
        return 0, b""
    place, at = 0, 0
    while at < len(said):
        data = pieces[place % len(pieces)][0]
        if not said.startswith(data, at):
            rest = said[at:]
            if data.startswith(rest):
                return place + 1, data[len(rest) :]
            return _locate_repaired(pieces, total, said), b""
        at += len(data)
        place += 1
    return place, b""


def _locate_repaired(pieces: list[tuple[bytes, int]], total: int, said: bytes) -> int:
    """Find the place by text: what was broken in the pieces came back as U+FFFD."""
    text = said.decode("utf-8", "replace")
    whole = b""
    for place in range(total):
        whole += pieces[place % len(pieces)][0]
        if whole.decode("utf-8", "replace") == text:
            return place + 1
    return 0
