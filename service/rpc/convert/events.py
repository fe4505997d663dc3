"""Log entries as the messages of a stream: the hot path.

Entries that came together go together: consecutive outputs become one message, up to a size. How
they are grouped carries no meaning (`tailrace.v1.OutputDelta`); nothing is held back for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from protos.tailrace.v1 import prediction_pb2 as pb
from service.domain.events import Accepted, Completed, Entry, Log, Output, Started, TokenLogprob
from service.domain.public_text import MAX_ERROR_BYTES, public_text
from service.rpc.convert.resources import FINISH_REASON, STATUS, matched_stop_to, moment_to, usage_to

MAX_EVENT_BYTES = 768 * 1024
"""Outputs are joined up to this estimate, so that a message stays below 1 MiB: far below every
receiver's limit (4 MiB by default), and a fraction of what flow control lets ahead."""
_MESSAGE_OVERHEAD = 32
"""Upper bound of tags, lengths and numbers of one nested message."""


def events_from(
    prediction_id: str, entries: Sequence[Entry], *, unjoined: bool = False
) -> list[pb.PredictionEvent]:
    """Return the messages that carry `entries`, in order, consecutive outputs joined unless `unjoined`.

    A single entry is never split, so one entry above the limit makes one message above it.
    """
    if unjoined:
        return [_event(prediction_id, entry) for entry in entries]
    if len(entries) == 1:
        entry = entries[0]
        event = entry.event
        if isinstance(event, Output) and not event.logprobs:
            return [_single(entry.sequence, event)]
        return [_event(prediction_id, entry)]
    made: list[pb.PredictionEvent] = []
    run: list[tuple[int, Output]] = []
    size = 0
    for entry in entries:
        event = entry.event
        if isinstance(event, Output):
            more = _size(event)
            if run and size + more > MAX_EVENT_BYTES:
                made.append(_joined(run))
                run, size = [], 0
            run.append((entry.sequence, event))
            size += more
            continue
        if run:
            made.append(_joined(run))
            run, size = [], 0
        made.append(_event(prediction_id, entry))
    if run:
        made.append(_joined(run))
    return made


def _single(sequence: int, output: Output) -> pb.PredictionEvent:
    """Build the most frequent message: one output without logprobs."""
    message = pb.PredictionEvent(first_sequence=sequence, sequence=sequence)
    delta = message.output  # filled in place: a message given as an argument is copied
    delta.text = output.text
    delta.token_count = output.token_count
    delta.token_ids.extend(output.token_ids)
    return message


def _joined(run: list[tuple[int, Output]]) -> pb.PredictionEvent:
    message = pb.PredictionEvent(first_sequence=run[0][0], sequence=run[-1][0])
    delta = message.output
    delta.text = "".join([output.text for _, output in run])
    delta.token_count = sum(output.token_count for _, output in run)
    delta.token_ids.extend([i for _, output in run for i in output.token_ids])
    delta.logprobs.extend([_logprob(p) for _, output in run for p in output.logprobs])
    return message


def _event(prediction_id: str, entry: Entry) -> pb.PredictionEvent:
    message = pb.PredictionEvent(first_sequence=entry.sequence, sequence=entry.sequence)
    match entry.event:
        case Accepted(at):
            message.accepted.CopyFrom(pb.Accepted(prediction_id=prediction_id, time=moment_to(at)))
        case Started(at, input_tokens):
            message.started.CopyFrom(pb.Started(time=moment_to(at), input_tokens=input_tokens))
        case Output() as output:
            return _joined([(entry.sequence, output)])
        case Log(text):
            message.log.CopyFrom(pb.LogLine(text=text))
        case Completed() as end:
            message.completed.CopyFrom(
                pb.Completed(
                    time=moment_to(end.at),
                    status=STATUS[end.status],
                    finish_reason=FINISH_REASON[end.finish_reason],
                    matched_stop=matched_stop_to(end.matched_stop),
                    usage=usage_to(end.usage),
                    error=public_text(end.error, MAX_ERROR_BYTES),
                )
            )
        case _:
            assert_never(entry.event)
    return message


def _logprob(p: TokenLogprob) -> pb.TokenLogprob:
    return pb.TokenLogprob(
        token=p.token,
        data=p.data,
        token_id=p.token_id,
        logprob=p.logprob,
        top=[
            pb.TopLogprob(token=t.token, data=t.data, token_id=t.token_id, logprob=t.logprob) for t in p.top
        ],
    )


def _size(output: Output) -> int:
    """Return an upper bound of the encoded size: a character is at most 4 bytes, an id 5."""
    size = _MESSAGE_OVERHEAD + 4 * len(output.text) + 5 * len(output.token_ids)
    for p in output.logprobs:
        size += _MESSAGE_OVERHEAD + 4 * len(p.token) + len(p.data)
        for t in p.top:
            size += _MESSAGE_OVERHEAD + 4 * len(t.token) + len(t.data)
    return size
