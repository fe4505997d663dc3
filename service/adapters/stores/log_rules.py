"""What every store holds its callers to: the shape of a create and of an append, and who may append.

Owns the judgements that must be the same in each adapter, as pure functions. It does not own where
logs live, nor which event may follow which (`lifecycle`). A `ValueError` here is a bug of the caller.

Beyond the port: an append is judged by its epoch first, then by whether the log is closed; a refused
one is not held to the sequence rule. An append to a prediction that the store does not know is
answered `CLOSED`, since only finished predictions are ever removed. One without entries is judged
like any other and writes nothing.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from service.domain.errors import IdConflict
from service.domain.events import Accepted, Completed, Entry
from service.domain.lifecycle import Prediction
from service.ports.store import Append, Appended

REQUEST_ID_LIFE = timedelta(hours=24)
"""How long a request id names its prediction (design §4), by the `created_at` of both. It goes
with its record when the whole record is removed, so keep records at least this long."""


class Head(NamedTuple):
    """Where a log stands. A tuple, as one is made for each log in each engine step."""

    epoch: int
    last_sequence: int
    closed: bool
    """Whether its `completed` is written."""


def check_create(prediction: Prediction, accepted: Entry) -> None:
    """Raise ValueError unless `accepted` opens a log and `prediction` is the record after it."""
    if accepted.sequence != 1 or not isinstance(accepted.event, Accepted):
        raise ValueError("a log begins with `accepted`, sequence 1")
    if prediction.last_sequence != 1 or prediction.status.terminal or not prediction.id:
        raise ValueError("a new prediction is the record after its `accepted`")


def check_append(append: Append) -> int:
    """Return the sequence that the log must have reached before `append`.

    Raises:
        ValueError: a hole between its entries, an entry after `completed`, or a record that is
            not the one after the last entry.
    """
    entries, record = append.entries, append.record
    if record.id != append.prediction_id or record.epoch != append.epoch:
        raise ValueError("the record is of another prediction or claim")
    if not entries:
        return record.last_sequence
    before = entries[0].sequence - 1
    completed = False
    for offset, entry in enumerate(entries, 1):
        if entry.sequence != before + offset:
            raise ValueError(f"sequence {entry.sequence} cannot follow {before + offset - 1}")
        if completed:
            raise ValueError("nothing follows `completed`")
        completed = isinstance(entry.event, Completed)
    if record.last_sequence != before + len(entries):
        raise ValueError("the record is not the one after the last entry")
    if not completed == record.status.terminal == (record.completed_at is not None):
        raise ValueError("a record is terminal exactly when its log is")
    return before


def judge(head: Head | None, epoch: int, before: int) -> Appended:
    """Return what becomes of an append that expects the log to have reached `before`.

    Raises:
        ValueError: it would be taken, but repeats entries or leaves a hole.
    """
    if head is None:
        return Appended.CLOSED
    if head.epoch != epoch:
        return Appended.FENCED
    if head.closed:
        return Appended.CLOSED
    if head.last_sequence != before:
        raise ValueError(f"sequence {before + 1} cannot follow {head.last_sequence}")
    return Appended.OK


def names_earlier(earlier: datetime, created_at: datetime) -> bool:
    """Whether a request id used at `earlier` still names that prediction at `created_at`."""
    return created_at - earlier < REQUEST_ID_LIFE


def judge_repeat(*, same_owner: bool, same_body: bool) -> None:
    """Raise IdConflict unless a create repeats the earlier one that its request id or id names.

    One message for all: whether an id is taken by somebody else is not told.
    """
    if not (same_owner and same_body):
        raise IdConflict("the request id or prediction id was used with another body")


def check_limit(limit: int) -> None:
    """Raise ValueError unless a read or a page may hold something."""
    if limit < 1:
        raise ValueError("a limit is at least 1")
