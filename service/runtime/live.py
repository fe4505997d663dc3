"""A live prediction: the one not yet ended, with its log in memory and its readers.

Owns the place where cancel, deadline, failure and success race (`close`: the first wins), and the
line between what is staged and what the store has (`publish`: readers see only that). It does no
I/O: the log writer takes `staged` entries to the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from service.domain.events import (
    Completed,
    Entry,
    Event,
    Output,
    Usage,
)
from service.domain.lifecycle import Ending, Prediction, advance, after_outputs

MERGE_TOKENS = 64
"""Outputs that wait for the store together become one entry, up to so many tokens: a slow store
then costs fewer rows, and nothing is held back for it."""


class LivePrediction:
    """See the module. Used from the event loop's thread alone."""

    def __init__(self, record: Prediction, entries: tuple[Entry, ...], *, input_tokens: int) -> None:
        self.record = record
        """What the store has."""
        self.entries: list[Entry] = list(entries)
        """What the store has, and readers may see: all of the log, from sequence 1."""
        self.staged: list[Entry] = []
        """Decided, on the way to the store."""
        self.staged_record = record
        self.ending: Ending | None = None
        self.input_tokens = input_tokens
        """What the prompt feeds; 0 while unknown (restored from the store)."""
        self.needs_claim = False
        """Whether an earlier claim may still be at work: a new epoch must shut it out first."""
        self.attached_callers = 0
        self.readers = 0
        self.stale_claims = 0
        """Claims since output last grew: bounds how often a prompt may kill an engine."""
        self.tokens_at_claim = record.usage.output_tokens
        self.done = asyncio.Event()
        """Set once the end is in the store."""
        self._news: asyncio.Event | None = None
        self.watchers: set[Callable[[], None]] = set()
        """Called at each `wake`, on the event loop; must not block. For readers without a task."""

    @property
    def id(self) -> str:
        """The prediction's id."""
        return self.record.id

    @property
    def settled(self) -> bool:
        """Whether `completed` has been staged; nothing can follow."""
        return self.staged_record.status.terminal

    @property
    def decided(self) -> tuple[Entry, ...]:
        """The log with what is on its way to the store."""
        return (*self.entries, *self.staged)

    def stage(self, event: Event, now: datetime) -> None:
        """Decide that `event` comes next. The caller makes sure that it may.

        Raises:
            IllegalEvent: it cannot follow (a bug of the caller).
        """
        if isinstance(event, Output):
            last = self.staged[-1] if self.staged else None
            if last and isinstance(last.event, Output) and _fit(last.event, event):
                self.staged[-1] = Entry(last.sequence, _joined(last.event, event))
                self.staged_record = after_outputs(
                    self.staged_record, entries=0, token_count=event.token_count
                )
                return
        entry = Entry(self.staged_record.last_sequence + 1, event)
        self.staged_record = advance(self.staged_record, entry, now)
        self.staged.append(entry)

    def close(self, ending: Ending) -> bool:
        """Decide how it ends, unless that is decided already. Return whether this call decided."""
        if self.ending is not None or self.settled:
            return False
        self.ending = ending
        return True

    def settle(self, now: datetime, usage: Usage) -> None:
        """Stage the decided end with the final counts; a second call changes nothing."""
        if self.settled or self.ending is None:
            return
        end = self.ending
        self.stage(
            Completed(now, end.status, end.finish_reason, usage, end.matched_stop, end.error),
            now,
        )

    def claim(self, record: Prediction) -> None:
        """Take over the log under a new epoch. Everything staged must be in the store."""
        assert not self.staged
        self.stale_claims = self.stale_claims + 1 if record.usage.output_tokens == self.tokens_at_claim else 0
        self.tokens_at_claim = record.usage.output_tokens
        self.record = self.staged_record = record
        self.needs_claim = False

    def take(self) -> tuple[Entry, ...]:
        """Hand everything staged to the writer, which puts it into the store."""
        taken = tuple(self.staged)
        self.staged.clear()
        return taken

    def publish(self, entries: tuple[Entry, ...], record: Prediction) -> None:
        """Show readers what the store now has."""
        self.entries.extend(entries)
        self.record = record
        self.wake()
        if record.status.terminal:
            self.done.set()

    def wake(self) -> None:
        """Let every waiting reader look again."""
        if self._news is not None:
            self._news.set()
            self._news = None
        for watcher in self.watchers:
            watcher()

    async def wait(self) -> None:
        """Wait for the next `publish` (or `wake`). Call only when there is nothing to read.

        Made once a token and reader, so the loop's own event: it costs an eighth of anyio's.
        """
        if self._news is None:
            self._news = asyncio.Event()
        await self._news.wait()


def _fit(first: Output, second: Output) -> bool:
    return first.token_count + second.token_count <= MERGE_TOKENS


def _joined(first: Output, second: Output) -> Output:
    return Output(
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        token_count=first.token_count + second.token_count,
        logprobs=first.logprobs + second.logprobs,
        aligned=second.aligned,
    )
