"""A live prediction: the one not yet ended, with its log in memory and its readers.

Owns the place where cancel, deadline, failure and success race (`close`: the first wins), and the
line between what is staged and what the store has (`publish`: readers see only that). It does no
I/O: the log writer takes `staged` entries to the store.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import anyio

from service.domain.events import (
    Completed,
    Entry,
    Event,
    Output,
    Usage,
)
from service.domain.lifecycle import Ending, Prediction, advance

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
        self.done = anyio.Event()
        """Set once the end is in the store."""
        self._news = anyio.Event()

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
        if isinstance(event, Output) and self.staged and isinstance(self.staged[-1].event, Output):
            last = self.staged[-1].event
            if last.token_count + event.token_count <= MERGE_TOKENS:
                merged = Output(
                    text=last.text + event.text,
                    token_ids=last.token_ids + event.token_ids,
                    token_count=last.token_count + event.token_count,
                    logprobs=last.logprobs + event.logprobs,
                    aligned=event.aligned,
                )
                self.staged[-1] = Entry(self.staged[-1].sequence, merged)
                usage = self.staged_record.usage
                grown = replace(usage, output_tokens=usage.output_tokens + event.token_count)
                self.staged_record = replace(self.staged_record, usage=grown)
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
        news, self._news = self._news, anyio.Event()
        news.set()

    async def wait(self) -> None:
        """Wait for the next `publish` (or `wake`). Call only when there is nothing to read."""
        await self._news.wait()
