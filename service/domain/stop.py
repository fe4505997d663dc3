"""Where generated text ends: stop strings, stop token ids, and which text may be shown already.

Owns the step from any engine's pieces to output that the log may keep (invariant I7): complete
characters that no stop string can still swallow, and each token at one place. It does not own
why generation ends otherwise (end of turn, length, cancel): the caller then calls `finish`.

Matching. Text is read left to right after U+FFFD repair; the stop string whose last character
comes first wins, among several with the same last character the longest: the shorter would leave
the beginning of a listed stop in the output. How the text is cut into pieces changes nothing.
Held back is the longest tail that begins some stop string, and no more. (Difference from vLLM:
it breaks ties by list order and always holds the longest stop's length less one.)

Minimum length. A stop counts only if at least `min_tokens` tokens came before the piece that
holds its last character or is the stop token; a match may begin in earlier text. A character
decided by `finish` counts to the last piece. A stop token that does not count is ordinary.

Tokens. A release carries the tokens whose last byte it shows. A token without text goes with the
next release, or with the last. Text runs ahead of tokens when a held tail begins inside one:
`Released.aligned` is then false, and a continuation must start from the text. A token that a stop
swallows, wholly or in part, is in the assembler's `token_count` and in no release.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from service.domain.characters import CharacterAssembler
from service.domain.events import TokenLogprob


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """What the engine produced for one or several tokens."""

    data: bytes
    """The text's raw bytes; may begin and end inside a character, may be empty."""
    token_ids: tuple[int, ...]
    """Empty where the engine does not know them."""
    token_count: int
    """Sampled tokens this stands for; at least as many as there are ids."""
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Released:
    """Text that no stop string can still swallow, with the tokens whose text it completes."""

    text: str
    """Empty only at the end, to report a match or tokens that have no text."""
    token_ids: tuple[int, ...]
    token_count: int
    """Sampled tokens completed here, known by id or not."""
    logprobs: tuple[TokenLogprob, ...]
    matched_stop: str | int | None = None
    """The stop string or stop token id that ended the text; set on the last release only."""
    aligned: bool = True
    """Whether the tokens released so far cover all text released so far."""


class StopMatcher:
    """Find the first stop string in a text that arrives in parts (Aho and Corasick, 1975).

    Time per character and memory depend on the stop strings only, not on the text.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        """Build the automaton. Raises ValueError for an empty stop string."""
        self._next: list[dict[str, int]] = [{}]
        self._back = [0]
        self._depth = [0]
        self._found: list[str | None] = [None]
        self._state = 0
        for stop in stops:
            self._add(stop)
        self._link()
        self._first = frozenset(self._next[0])

    @property
    def held(self) -> int:
        """Return how many last characters of the text begin a stop string and do not end it."""
        return self._depth[self._state]

    def passes(self, text: str) -> bool:
        """Whether `text` neither goes on with nor begins a stop string; it need not be fed."""
        return not self._state and self._first.isdisjoint(text)

    def feed(self, text: str, *, armed: bool) -> tuple[int, str] | None:
        """Return the first stop that ends in `text` and the index past its end.

        Not armed, the text is read and no match reported. After a match feed no more.
        """
        following, back, found = self._next, self._back, self._found
        state = self._state
        for end, char in enumerate(text, 1):
            while state and char not in following[state]:
                state = back[state]
            state = following[state].get(char, 0)
            if armed and (stop := found[state]) is not None:
                return end, stop
        while state and not following[state]:  # passed over unarmed: a whole stop holds nothing
            state = back[state]
        self._state = state
        return None

    def _add(self, stop: str) -> None:
        if not stop:
            raise ValueError("a stop string must not be empty")
        state = 0
        for char in stop:
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._back.append(0)
                self._depth.append(self._depth[state] + 1)
                self._found.append(None)
            state = self._next[state][char]
        self._found[state] = stop

    def _link(self) -> None:
        """Point each state at its longest proper suffix that is a state, shallow states first."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self._next[state].items():
                back = self._back[state]
                while back and char not in self._next[back]:
                    back = self._back[back]
                self._back[child] = self._next[back].get(char, 0)
                if self._found[child] is None:
                    self._found[child] = self._found[self._back[child]]
                queue.append(child)


class TextAssembler:
    """Turn one job's pieces into releases.

    Holds less text than the longest stop, its pieces, and any without text (bound: max_tokens).
    """

    def __init__(
        self,
        stop: Sequence[str] = (),
        stop_token_ids: Collection[int] = (),
        *,
        min_tokens: int = 0,
        resumed_tokens: int = 0,
    ) -> None:
        """Begin. `resumed_tokens` were released before this and count to `min_tokens`.

        Raises ValueError for an empty stop string.
        """
        self._matcher = StopMatcher(stop)
        self._stop_token_ids = frozenset(stop_token_ids)
        self._armed_from = min_tokens - resumed_tokens
        self._armed = True
        self._characters = CharacterAssembler()
        # In characters of the whole text: where the first byte lies, one past where the last lies.
        self._waiting: deque[tuple[int, int, TokenPiece]] = deque()
        self._held = ""
        self._decoded = 0
        self._released = 0
        self._fed = 0
        self._ended = False
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string or stop token id has ended the text."""
        return self._stopped

    @property
    def token_count(self) -> int:
        """Return the tokens fed until the end, swallowed ones and the stop token included."""
        return self._fed

    def feed(self, piece: TokenPiece) -> Released | None:
        """Take a piece; return what it lets go, None if all is held back.

        After the end a piece is ignored and not counted, so that usage does not depend on how
        far an engine ran on. Raises ValueError if a stop token id that counts shares its piece
        with other tokens: their text could not be told apart.
        """
        if self._ended:
            return None
        self._armed = self._fed >= self._armed_from
        if self._armed and not self._stop_token_ids.isdisjoint(piece.token_ids):
            return self._stop_at(piece)
        self._fed += piece.token_count
        start = self._decoded
        if self._characters.pending and not self._characters.continues(piece.data):
            start += 1
        text = self._characters.feed(piece.data)
        self._decoded += len(text)
        end = self._decoded + bool(self._characters.pending)
        if text and end == self._decoded and not self._waiting and self._matcher.passes(text):
            self._released = end
            return Released(text, piece.token_ids, piece.token_count, piece.logprobs)
        self._waiting.append((start, end, piece))
        return self._advance(text)

    def finish(self) -> Released | None:
        """End the text for another reason than a stop; return all that was held back, if any.

        A cut-off character becomes one U+FFFD, which may itself complete a stop string.
        """
        return None if self._ended else self._close(None)

    def _stop_at(self, piece: TokenPiece) -> Released | None:
        if piece.token_count != 1:
            raise ValueError("a stop token must come in a piece of its own")
        self._fed += 1
        return self._close(piece.token_ids[0])

    def _close(self, stop: int | None) -> Released | None:
        self._ended = True
        return self._advance(self._characters.flush(), stop)

    def _advance(self, text: str, stop: str | int | None = None) -> Released | None:
        """Read on by `text`; release what is certain, at the end all of it."""
        known = self._held + text
        found = self._matcher.feed(text, armed=self._armed)
        if found is not None:
            end, stop = found  # also before a stop token: the string was complete first
            cut = len(self._held) + end - len(stop)
        else:
            cut = len(known) - (0 if self._ended else self._matcher.held)
        if stop is not None:
            self._ended = self._stopped = True
        self._held = known[cut:]
        if cut == 0 and stop is None and not (self._ended and self._waiting):
            return None
        return self._release(known[:cut], stop)

    def _release(self, text: str, stop: str | int | None) -> Released:
        """Join `text` with the waiting tokens whose last byte it shows."""
        self._released += len(text)
        done: list[TokenPiece] = []
        while self._waiting and self._waiting[0][1] <= self._released:
            done.append(self._waiting.popleft()[2])
        return Released(
            text,
            tuple(chain.from_iterable(piece.token_ids for piece in done)),
            sum(piece.token_count for piece in done),
            tuple(chain.from_iterable(piece.logprobs for piece in done)),
            stop,
            not self._waiting or self._waiting[0][0] >= self._released,
        )
