"""Messages to domain and back: nothing lost, nothing split or merged wrongly, all enums covered."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from protos.tailrace.v1 import model_service_pb2 as mpb
from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as spb
from service.domain.errors import InvalidRequest
from service.domain.events import (
    Accepted,
    Completed,
    Entry,
    FinishReason,
    Log,
    Output,
    Started,
    Status,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from service.domain.lifecycle import Prediction
from service.domain.request import (
    ChatMessage,
    ChatPrompt,
    ForcedTool,
    GenerationRequest,
    Grammar,
    JsonSchema,
    Regex,
    Sampling,
    Stopping,
    TextPrompt,
    TokenPrompt,
    Tool,
    ToolCall,
    check,
)
from service.domain.webhook import WebhookEvent
from service.ports.engine import Capability, EngineInfo
from service.rpc.convert import (
    count_input,
    events_from,
    generation_from,
    generation_to,
    model_to,
    moment_from,
    new_prediction,
    page_size,
    prediction_to,
    wait_from,
)
from service.rpc.convert.resources import FINISH_REASON, MODEL_STATE, STATUS, WEBHOOK_EVENT
from service.runtime.cursor import OutputSoFar
from service.runtime.models import ModelState, ServedModel

NOW = datetime(2026, 3, 4, 5, 6, 7, 891011, tzinfo=UTC)
MIB = 1024 * 1024

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
token_ids = st.lists(st.integers(0, 2**32 - 1), max_size=8).map(tuple)
floats = st.floats()
samplings = st.builds(
    Sampling,
    temperature=floats,
    top_p=floats,
    top_k=st.integers(0, 2**31 - 1),
    min_p=floats,
    typical_p=floats,
    repetition_penalty=floats,
    frequency_penalty=floats,
    presence_penalty=floats,
    seed=st.none() | st.integers(0, 2**63 - 1),
    logit_bias=st.dictionaries(st.integers(0, 2**32 - 1), floats, max_size=4).map(
        lambda bias: tuple(sorted(bias.items()))
    ),
)
stoppings = st.builds(
    Stopping,
    max_tokens=st.none() | st.integers(-(2**31), 2**31 - 1),
    min_tokens=st.integers(-(2**31), 2**31 - 1),
    stop=st.lists(text, max_size=4).map(tuple),
    stop_token_ids=token_ids,
    ignore_eos=st.booleans(),
)
tools = st.builds(Tool, text, text, text)
messages = st.builds(
    ChatMessage, text, text, st.lists(st.builds(ToolCall, text, text, text), max_size=2).map(tuple), text
)
chats = st.builds(
    ChatPrompt,
    st.lists(messages, max_size=4).map(tuple),
    st.lists(tools, max_size=2).map(tuple),
    st.none() | st.builds(ForcedTool, text),
    st.booleans(),
)
requests = st.builds(
    GenerationRequest,
    prompt=st.one_of(
        st.builds(TextPrompt, text),
        st.builds(TokenPrompt, token_ids),
        chats,
    ),
    sampling=samplings,
    stopping=stoppings,
    constraint=st.one_of(
        st.none(), st.builds(JsonSchema, text), st.builds(Regex, text), st.builds(Grammar, text)
    ),
    logprobs=st.none() | st.integers(0, 2**32 - 1),
    priority=st.integers(-(2**31), 2**31 - 1),
)


@given(requests)
def test_a_request_survives_the_way_out_and_in_even_out_of_bounds(request: GenerationRequest):
    wire = generation_to(request).SerializeToString()
    assert repr(generation_from(pb.GenerationRequest.FromString(wire))) == repr(request)  # NaN: by repr


def test_absent_fields_are_the_domains_defaults():
    assert generation_from(pb.GenerationRequest(prompt="x")) == GenerationRequest(TextPrompt("x"))


def test_minus_one_is_off_for_top_k_and_random_for_seed():
    message = pb.GenerationRequest(prompt="x", sampling=pb.Sampling(top_k=-1, seed=-1))
    assert generation_from(message) == GenerationRequest(TextPrompt("x"))


@pytest.mark.parametrize("seed", [-2, -5, -(2**63)])
def test_other_negative_seeds_are_refused_by_name(seed: int):
    message = pb.GenerationRequest(prompt="x", sampling=pb.Sampling(seed=seed))
    assert [v.field for v in check(generation_from(message))] == ["sampling.seed"]


def create(**changes: object) -> spb.CreatePredictionRequest:
    request = spb.CreatePredictionRequest(model="a/b", generation=pb.GenerationRequest(prompt="x"))
    request.MergeFrom(spb.CreatePredictionRequest(**changes))
    return request


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (spb.CreatePredictionRequest(generation=pb.GenerationRequest(prompt="x")), "model"),
        (spb.CreatePredictionRequest(model="a/b"), "input"),
        (create(generation=pb.GenerationRequest(sampling=pb.Sampling(top_k=-2))), "sampling.top_k"),
        (create(generation=pb.GenerationRequest(prompt="x" * 6 * MIB)), "generation"),
        (create(request_id="x" * 129), "request_id"),
        (create(request_id="a\nb"), "request_id"),
        (create(request_id="é"), "request_id"),
        (create(cancel_after=Duration(seconds=4, nanos=999_999_999)), "cancel_after"),
        (create(cancel_after=Duration(seconds=86_400, nanos=1000)), "cancel_after"),
        (create(cancel_after=Duration(seconds=-5)), "cancel_after"),
        (create(cancel_after=Duration(seconds=2**62)), "cancel_after"),
        (create(cancel_after=Duration()), "cancel_after"),
        (create(labels={str(i): "" for i in range(65)}), "labels"),
        (create(labels={"k": "é" * 32 * 1024}), "labels"),
    ],
)
def test_what_cannot_be_represented_is_refused_by_name(request_: spb.CreatePredictionRequest, field: str):
    with pytest.raises(InvalidRequest) as refused:
        new_prediction(request_, attached=False)
    assert [v.field for v in refused.value.violations] == [field]


def test_all_refusals_come_at_once():
    message = spb.PredictRequest(request_id="\0", cancel_after=Duration(seconds=1))
    with pytest.raises(InvalidRequest) as refused:
        new_prediction(message, attached=True)
    fields = [v.field for v in refused.value.violations]
    assert fields == ["model", "request_id", "cancel_after", "input"]


def test_a_create_carries_its_fields_over():
    message = create(request_id="id 1", cancel_after=Duration(seconds=5), labels={"b": "2", "a": "1"})
    new = new_prediction(message, attached=True)
    assert (new.model, new.request_id, new.attached) == ("a/b", "id 1", True)
    assert new.cancel_after == timedelta(seconds=5)
    assert new.labels == (("a", "1"), ("b", "2"))
    assert new_prediction(create(), attached=False).cancel_after is None


@pytest.mark.parametrize(
    ("wait", "seconds"),
    [
        (Duration(), 0),
        (Duration(seconds=-1), 0),
        (Duration(nanos=500_000_000), 0.5),
        (Duration(seconds=60), 60),
        (Duration(seconds=61), 60),
        (Duration(seconds=2**62), 60),
        (Duration(seconds=-(2**62)), 0),
    ],
)
def test_a_wait_is_clamped(wait: Duration, seconds: float):
    assert wait_from(spb.GetPredictionRequest(id="x", wait=wait)) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("asked", "given_"), [(0, 100), (1, 1), (1000, 1000), (1001, 1000), (2**31 - 1, 1000)]
)
def test_a_page_size_is_clamped(asked: int, given_: int):
    assert page_size(spb.ListPredictionsRequest(page_size=asked)) == given_


def test_a_negative_page_size_is_refused():
    with pytest.raises(InvalidRequest):
        page_size(spb.ListPredictionsRequest(page_size=-1))


def test_times_are_aware_or_absent_or_refused():
    stamp = Timestamp()
    stamp.FromDatetime(NOW)
    message = spb.ListPredictionsRequest(created_after=stamp, created_before=Timestamp(seconds=2**60))
    assert moment_from(message, "created_after") == NOW
    assert moment_from(spb.ListPredictionsRequest(), "created_after") is None
    with pytest.raises(InvalidRequest):
        moment_from(message, "created_before")


def test_an_input_to_count_is_required():
    assert count_input(mpb.CountTokensRequest(model="a/b", prompt="x")) == TextPrompt("x")
    with pytest.raises(InvalidRequest):
        count_input(mpb.CountTokensRequest(model="a/b"))


# ---------------------------------------------------------------------------------------- records


@pytest.mark.parametrize(
    ("table", "kind", "proto"),
    [
        (STATUS, Status, pb.Status),
        (FINISH_REASON, FinishReason, pb.FinishReason),
        (MODEL_STATE, ModelState, mpb.ModelState),
        (WEBHOOK_EVENT, WebhookEvent, pb.WebhookEvent),
    ],
)
def test_enums_are_mapped_one_to_one_and_by_name(table, kind, proto):
    assert set(table) == set(kind)
    assert sorted(table.values()) == sorted(proto.values())[1:]  # all but _UNSPECIFIED
    for member, number in table.items():
        assert proto.Name(number).endswith(f"_{member.name}")


def test_a_record_carries_its_fields_over():
    record = Prediction(
        id="p",
        model="a/b",
        request=GenerationRequest(TextPrompt("x")),
        created_at=NOW,
        attached=True,
        deadline=NOW + timedelta(hours=1),
        labels=(("k", "v"),),
        status=Status.SUCCEEDED,
        started_at=NOW,
        first_output_at=NOW,
        completed_at=NOW,
        finish_reason=FinishReason.STOP,
        matched_stop=7,
        usage=Usage(1, 2, 3),
        epoch=2,
        last_sequence=9,
    )
    message = prediction_to(record, OutputSoFar(("a", "b"), "line"))
    assert message.create_time.ToDatetime(tzinfo=UTC) == NOW
    assert message.matched_stop.token_id == 7 and message.matched_stop.WhichOneof("stop") == "token_id"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (1, 3)
    assert (list(message.output), message.logs, dict(message.labels)) == (["a", "b"], "line", {"k": "v"})
    assert (message.epoch, message.last_sequence, message.attached) == (2, 9, True)
    assert generation_from(message.request) == record.request
    assert not prediction_to(record, omit_request=True).HasField("request")


def test_what_has_not_happened_is_absent():
    message = prediction_to(Prediction(id="p", model="a/b", request=None, created_at=NOW))
    for field in ("request", "start_time", "first_output_time", "complete_time", "deadline", "matched_stop"):
        assert not message.HasField(field)
    assert message.finish_reason == pb.FINISH_REASON_UNSPECIFIED


def test_an_error_text_is_cut_and_cleaned():
    record = Prediction(id="p", model="a/b", request=None, created_at=NOW, error="\0\ud800" + "😀" * 30_000)
    error = prediction_to(record).error
    assert len(error.encode()) <= 1024 and "\0" not in error and error.endswith("…")


def test_a_model_shows_only_capabilities_that_are_request_fields():
    capabilities = frozenset(c.value for c in Capability)
    info = EngineInfo(
        "scripted", 4, 2048, 100, chat_template=True, capabilities=capabilities, tool_format="hermes"
    )
    message = model_to(ServedModel("a/b", ModelState.READY, info, running=1, waiting=2))
    assert (message.load.running, message.load.waiting, message.load.slots) == (1, 2, 4)
    assert list(message.capabilities) == sorted({*capabilities, "chat.tools"})
    assert message.tool_format == "hermes"
    for path in message.capabilities:
        descriptor = pb.GenerationRequest.DESCRIPTOR
        for name in path.split("."):
            field = descriptor.fields_by_name[name]
            descriptor = field.message_type
    loading = model_to(ServedModel("a/b", ModelState.LOADING, None, running=0, waiting=0))
    assert (loading.engine, loading.load.slots) == ("", 0)
    deaf = ServedModel("a/b", ModelState.READY, replace(info, tool_format=""), running=0, waiting=0)
    assert list(model_to(deaf).capabilities) == sorted(capabilities)


# ----------------------------------------------------------------------------------------- events

logprobs = st.builds(
    TokenLogprob,
    token=text,
    data=st.binary(max_size=4),
    token_id=st.none() | st.integers(0, 2**32 - 1),
    logprob=st.floats(max_value=0, allow_nan=False),
    top=st.lists(
        st.builds(
            TopLogprob,
            token=text,
            data=st.binary(max_size=4),
            token_id=st.none() | st.integers(0, 9),
            logprob=st.floats(max_value=0, allow_nan=False),
        ),
        max_size=2,
    ).map(tuple),
)
outputs = st.builds(
    Output,
    text=text,
    token_ids=token_ids,
    token_count=st.integers(0, 9),
    logprobs=st.just(()) | st.lists(logprobs, max_size=2).map(tuple),
)
logs = st.lists(st.one_of(outputs, outputs, outputs, st.builds(Log, text), st.just(Started(NOW, 3))))


def numbered(events: list, first: int = 1) -> tuple[Entry, ...]:
    return tuple(Entry(first + i, event) for i, event in enumerate(events))


def kinds(messages: list[pb.PredictionEvent]) -> list[str]:
    return [message.WhichOneof("event") for message in messages]


def read_logprob(message: pb.TokenLogprob) -> TokenLogprob:
    top = tuple(
        TopLogprob(t.token, t.data, t.token_id if t.HasField("token_id") else None, t.logprob)
        for t in message.top
    )
    token_id = message.token_id if message.HasField("token_id") else None
    return TokenLogprob(message.token, message.data, token_id, message.logprob, top)


@given(logs, st.integers(1, 2**40), st.data())
def test_however_a_log_is_read_no_entry_is_lost_repeated_or_reordered(events, first, data):
    entries = numbered(events, first)
    messages: list[pb.PredictionEvent] = []
    rest = entries
    while rest:
        cut = data.draw(st.integers(1, len(rest)))
        messages += events_from("p", rest[:cut])
        rest = rest[cut:]
    following = first
    for message in messages:
        assert message.first_sequence == following <= message.sequence
        following = message.sequence + 1
    assert following == first + len(entries)
    deltas = [message.output for message in messages if message.WhichOneof("event") == "output"]
    put_out = [event for event in events if isinstance(event, Output)]
    assert "".join(d.text for d in deltas) == "".join(o.text for o in put_out)
    assert [i for d in deltas for i in d.token_ids] == [i for o in put_out for i in o.token_ids]
    assert sum(d.token_count for d in deltas) == sum(o.token_count for o in put_out)
    assert [read_logprob(p) for d in deltas for p in d.logprobs] == [p for o in put_out for p in o.logprobs]
    lines = [message.log.text for message in messages if message.WhichOneof("event") == "log"]
    assert lines == [event.text for event in events if isinstance(event, Log)]


def test_consecutive_outputs_become_one_message_and_others_stay_alone():
    end = Completed(NOW, Status.FAILED, FinishReason.ERROR, Usage(1, 0, 3), "stop", "bad")
    events = [Accepted(NOW), Started(NOW, 4), Output("a"), Output("b"), Log("l"), Output("c"), end]
    messages = events_from("p", numbered(events))
    assert kinds(messages) == ["accepted", "started", "output", "log", "output", "completed"]
    assert messages[0].accepted.prediction_id == "p"
    assert messages[0].accepted.time.ToDatetime(tzinfo=UTC) == NOW
    assert messages[1].started.input_tokens == 4
    assert (messages[2].first_sequence, messages[2].sequence, messages[2].output.text) == (3, 4, "ab")
    completed = messages[-1].completed
    assert (completed.status, completed.finish_reason) == (pb.STATUS_FAILED, pb.FINISH_REASON_ERROR)
    assert (completed.matched_stop.text, completed.error, completed.usage.output_tokens) == ("stop", "bad", 3)


def test_messages_stay_below_a_mebibyte_whatever_the_logprobs():
    top = tuple(TopLogprob("�" * 8, b"\xff" * 8, i, -1.5) for i in range(20))
    logprob = TokenLogprob("�" * 8, b"\xff" * 8, 1, -0.5, top)
    entries = numbered([Output("😀" * 8, (2**32 - 1,), 1, (logprob,))] * 4000)
    messages = events_from("p", entries)
    sizes = [message.ByteSize() for message in messages]
    assert max(sizes) < MIB < sum(sizes)
    assert sum(len(message.output.logprobs) for message in messages) == 4000


@given(logs, st.data())
def test_unjoined_every_reading_brings_the_same_messages(events, data):
    entries = numbered(events, 1)
    cut = data.draw(st.integers(0, len(entries)))
    parts = events_from("p", entries[:cut], unjoined=True) + events_from("p", entries[cut:], unjoined=True)
    assert parts == events_from("p", entries, unjoined=True)
    assert [m.first_sequence for m in parts] == [m.sequence for m in parts] == [e.sequence for e in entries]


def test_one_entry_is_never_split():
    whole = Output("😀" * MIB, (1,), 1)
    messages = events_from("p", numbered([Output("a"), whole, replace(whole, text="b")]))
    assert [(m.first_sequence, m.sequence) for m in messages] == [(1, 1), (2, 2), (3, 3)]
