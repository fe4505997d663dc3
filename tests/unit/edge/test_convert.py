"""proto ↔ values: total over the enums, and nothing lost on the way."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.upstream import convert, records
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import Completed, OutputText, TokenLogprob, TopLogprob
from protos.tailrace.v1 import model_service_pb2, prediction_pb2, prediction_service_pb2
from tests.support.records import EPOCH


def test_the_enum_tables_are_total() -> None:
    assert set(convert.STATUSES) == set(prediction_pb2.Status.values()) - {0}
    assert set(convert.FINISH_REASONS) == set(prediction_pb2.FinishReason.values()) - {0}
    assert set(convert.MODEL_STATES) == set(model_service_pb2.ModelState.values()) - {0}
    assert set(convert.WEBHOOK_EVENTS) == set(prediction_pb2.WebhookEvent.values()) - {0}


def test_every_kind_of_event_is_known() -> None:
    kinds = prediction_pb2.PredictionEvent.DESCRIPTOR.oneofs_by_name["event"].fields
    for kind in kinds:
        message = prediction_pb2.PredictionEvent(first_sequence=3, sequence=4)
        getattr(message, kind.name).SetInParent()
        if kind.name == "completed":
            message.completed.status = prediction_pb2.STATUS_SUCCEEDED
            message.completed.finish_reason = prediction_pb2.FINISH_REASON_STOP
        event = convert.event_from_proto(message)
        assert event is not None and event.sequence == 4


def test_an_event_newer_than_this_edge_is_none() -> None:
    assert convert.event_from_proto(prediction_pb2.PredictionEvent(sequence=4)) is None


def test_an_output_event_keeps_its_bounds_and_text() -> None:
    message = prediction_pb2.PredictionEvent(first_sequence=3, sequence=5)
    message.output.text, message.output.token_count = " é\n", 3
    assert convert.event_from_proto(message) == OutputText(3, 5, " é\n", 3)
    message.output.token_ids.extend([4, 5])
    token = message.output.logprobs.add(token="é", data="é".encode(), token_id=4, logprob=-0.5)
    token.top.add(token="e", data=b"e", token_id=9, logprob=-1.5)
    logprob = TokenLogprob("é", "é".encode(), -0.5, (TopLogprob("e", b"e", -1.5),))
    assert convert.event_from_proto(message) == OutputText(3, 5, " é\n", 3, (4, 5), (logprob,))


def test_an_unknown_status_is_an_internal_error() -> None:
    with pytest.raises(UpstreamError) as caught:
        convert.record_from_proto(prediction_pb2.Prediction(id="x"))
    assert caught.value.reason is Reason.INTERNAL


SAMPLINGS = st.builds(
    records.Sampling,
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0, 1),
    top_k=st.none() | st.integers(1, 2**31 - 1),
    min_p=st.none() | st.floats(0, 1, exclude_min=True),
    repetition_penalty=st.none() | st.floats(0, 10, exclude_min=True),
    frequency_penalty=st.none() | st.floats(-2, 2).filter(bool),
    presence_penalty=st.none() | st.floats(-2, 2).filter(bool),
    seed=st.none() | st.integers(0, 2**63 - 1),
    logit_bias=st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100)).map(
        lambda biases: tuple(sorted(biases.items()))
    ),
)
INPUTS = st.one_of(
    st.builds(records.TextInput, st.text()),
    st.builds(records.TokenInput, st.lists(st.integers(0, 2**31 - 1)).map(tuple)),
    st.builds(
        records.ChatInput,
        st.lists(
            st.builds(
                records.ChatMessage,
                st.text(),
                st.text(),
                st.lists(st.builds(records.ToolCall, st.text(), st.text(), st.text()), max_size=2).map(tuple),
                st.text(),
            )
        ).map(tuple),
        st.lists(st.builds(records.Tool, st.text(), st.text(), st.text()), max_size=2).map(tuple),
        st.none() | st.text(),
        st.booleans(),
    ),
)
STOPPINGS = st.builds(
    records.Stopping,
    max_tokens=st.none() | st.integers(1, 2**31 - 1),
    min_tokens=st.none() | st.integers(1, 2**31 - 1),
    stop=st.lists(st.text()).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 2**31 - 1)).map(tuple),
    ignore_eos=st.booleans(),
)
GENERATIONS = st.builds(
    records.Generation,
    INPUTS,
    SAMPLINGS,
    STOPPINGS,
    st.none() | st.text(),
    top_logprobs=st.none() | st.integers(0, 20),
    priority=st.integers(-100, 100),
)


@given(GENERATIONS)
def test_a_generation_survives_the_round_trip(generation: records.Generation) -> None:
    wire = prediction_pb2.GenerationRequest.FromString(
        convert.generation_to_proto(generation).SerializeToString()
    )
    message = prediction_pb2.Prediction(id="x", status=prediction_pb2.STATUS_STARTING, request=wire)
    assert convert.record_from_proto(message).generation == generation


def test_counts_beyond_the_wire_mean_as_much_as_there_is_room() -> None:
    asked = records.Generation(
        records.TextInput("x"), records.Sampling(top_k=10**12), records.Stopping(max_tokens=10**12)
    )
    message = convert.generation_to_proto(asked)
    assert message.stopping.max_tokens == message.sampling.top_k == 2**31 - 1


def test_a_create_is_detached_and_can_be_repeated() -> None:
    new = records.NewPrediction(
        "a/b", records.Generation(records.TextInput("x")), timedelta(seconds=5), (("k", "v"),)
    )
    message = convert.create_to_proto(new, "id-1")
    assert (message.model, message.request_id, message.attached) == ("a/b", "id-1", False)
    assert message.cancel_after.ToTimedelta() == timedelta(seconds=5) and message.labels == {"k": "v"}


def test_times_are_aware_and_the_end_carries_its_stop() -> None:
    message = prediction_pb2.PredictionEvent(first_sequence=9, sequence=9)
    message.completed.time.CopyFrom(convert.timestamp(EPOCH))
    message.completed.status = prediction_pb2.STATUS_SUCCEEDED
    message.completed.finish_reason = prediction_pb2.FINISH_REASON_STOP
    message.completed.matched_stop.text = "END"
    event = convert.event_from_proto(message)
    assert isinstance(event, Completed) and event.time == EPOCH
    assert event.matched_stop is not None and event.matched_stop.text == "END"


@given(st.text(min_size=1), st.lists(st.sampled_from(records.WebhookEvent)).map(tuple), st.text())
def test_a_webhook_comes_back_without_its_context(
    url: str, events: tuple[records.WebhookEvent, ...], context: str
) -> None:
    webhook = records.Webhook(url, events, context)
    generation = records.Generation(records.TextInput("x"))
    new = records.NewPrediction("a/b", generation, webhook=webhook, prediction_id="mine")
    message = convert.create_to_proto(new, "id-1")
    assert (message.webhook.context, message.prediction_id) == (context, "mine")
    message.webhook.context = ""
    shown = prediction_pb2.Prediction(id="x", status=prediction_pb2.STATUS_STARTING, webhook=message.webhook)
    assert convert.record_from_proto(shown).webhook == records.Webhook(url, events)


def test_a_delivery_is_read_whole() -> None:
    message = prediction_service_pb2.WebhookDelivery(
        id="msg_p_completed_4", prediction_id="p", event=prediction_pb2.WEBHOOK_EVENT_COMPLETED, attempts=2,
        given_up=True, last_status=500, last_error="no", create_time=convert.timestamp(EPOCH),
        attempt_time=convert.timestamp(EPOCH),
    )  # fmt: skip
    assert convert.delivery_from_proto(message) == records.WebhookDelivery(
        "msg_p_completed_4", "p", records.WebhookEvent.COMPLETED, 2, False, True, 500, "no",
        EPOCH, EPOCH, None,
    )  # fmt: skip
