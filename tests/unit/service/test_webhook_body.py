"""The service's body is the edge's answer, byte for byte, for any prediction."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from edge.protocol.public_url import parse_public_base
from edge.replicate.deployments import deployment_label
from edge.replicate.inputs import input_label, to_generation
from edge.replicate.render import Links, render_prediction, webhook_context
from edge.replicate.schemas import read_create
from edge.replicate.tokens import StreamTokens
from edge.upstream import convert
from edge.upstream.records import NewPrediction, Webhook, WebhookEvent
from protos.tailrace.v1 import prediction_pb2, prediction_service_pb2
from service.adapters.webhook_body import ReplicateBody
from service.domain.events import (
    Accepted,
    Completed,
    Entry,
    Event,
    FinishReason,
    Log,
    Output,
    Started,
    Status,
    Usage,
)
from service.domain.lifecycle import Prediction, advance
from service.rpc.convert import new_prediction, prediction_to
from service.runtime.cursor import OutputSoFar

LINKS = Links(parse_public_base("https://h.example/llm"), StreamTokens(b"0123456789abcdef"))
NOW = datetime(2026, 12, 1, 1, 2, 3, 456789, tzinfo=UTC)
TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
GIVEN = st.one_of(
    st.fixed_dictionaries(
        {"prompt": TEXT.filter(bool)},
        optional={
            "system_prompt": TEXT,
            "temperature": st.floats(0, 2),
            "seed": st.integers(-1, 2**63 - 1),
            "max_tokens": st.integers(1, 2**20),
            "stop": st.lists(TEXT.filter(bool), max_size=3),
            "json_schema": st.just({"type": "object"}),
        },
    ),
    st.fixed_dictionaries(
        {
            "messages": st.lists(
                st.fixed_dictionaries({"role": st.just("user"), "content": TEXT.filter(bool)}),
                min_size=1,
                max_size=3,
            )
        }
    ),
)
ENDS = st.sampled_from(
    [
        None,
        (Status.SUCCEEDED, FinishReason.STOP, ""),
        (Status.CANCELED, FinishReason.DEADLINE, ""),
        (Status.FAILED, FinishReason.ERROR, "out of luck\0" + "ü" * 2000),
    ]
)


def create(
    given_input: dict, events: list[str], deployment: str
) -> prediction_service_pb2.CreatePredictionRequest:
    """Return what the edge sends for a create, as it goes over the wire."""
    body = read_create({"version": "a/b", "input": given_input})
    webhook = Webhook("https://h.example/x", tuple(WebhookEvent(name) for name in events))
    webhook = replace(webhook, context=webhook_context("theid", webhook, LINKS))
    new = NewPrediction(
        "a/b",
        to_generation(body.input, chat_template=True),
        timedelta(seconds=5),
        (input_label(body.input), *deployment_label(deployment)),
        prediction_id="theid",
        webhook=webhook,
    )
    wire = convert.create_to_proto(new, "r").SerializeToString()
    return prediction_service_pb2.CreatePredictionRequest.FromString(wire)


@given(
    GIVEN,
    st.lists(st.sampled_from([event.value for event in WebhookEvent]), unique=True),
    st.booleans(),
    st.lists(TEXT | st.sampled_from(["https://x", "data:"]) | st.builds(Log, TEXT), max_size=4),
    st.floats(0, 100),
    ENDS,
    st.sampled_from(["", "acme/chat"]),
)
def test_the_body_is_what_get_answers(
    given_input, events, started, outputs, passed_s, end, deployment
) -> None:
    new = new_prediction(create(given_input, events, deployment), attached=False)
    record = Prediction(
        new.prediction_id, new.model, new.request, NOW, deadline=NOW + timedelta(seconds=5),
        labels=new.labels, webhook=new.webhook, epoch=1,
    )  # fmt: skip
    log: list[Event] = [Accepted(NOW)]
    if started:
        log.append(Started(NOW + timedelta(seconds=passed_s), 7))
        log += [item if isinstance(item, Log) else Output(item, (), 1) for item in outputs]
    if end is not None and (started or end[0] is not Status.SUCCEEDED):
        log.append(Completed(NOW + timedelta(seconds=2 * passed_s), *end[:2], Usage(7, 1, 5), None, end[2]))
    entries = [Entry(number, event) for number, event in enumerate(log, 1)]
    for entry in entries:
        record = advance(record, entry, NOW + timedelta(seconds=passed_s))

    pieces = tuple(event.text for event in log if isinstance(event, Output))
    lines = "\n".join(event.text for event in log if isinstance(event, Log))
    wire = prediction_to(record, OutputSoFar(pieces, lines)).SerializeToString()
    shown = convert.record_from_proto(prediction_pb2.Prediction.FromString(wire))
    assert ReplicateBody().render(record, entries) == render_prediction(shown, LINKS)
