"""Every method over real sockets: what callers get, and what becomes of calls that end early."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import anyio
import grpc
import pytest
import structlog
from google.protobuf.duration_pb2 import Duration

from protos.tailrace.v1 import model_service_pb2 as mpb
from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as spb
from service.domain import errors
from service.domain.errors import InvalidRequest, QueueFull, TailraceError
from service.domain.events import FinishReason, Log, Output, Started, Status, TokenLogprob, TopLogprob
from service.domain.request import FieldViolation
from service.domain.webhook import Webhook, WebhookEvent
from service.domain.webhook_delivery import Delivery
from service.rpc.server import ServerOptions
from service.rpc.status import CODES
from tests.support.rpc import failure, open_calls, predict_request, read_all, serving

pytestmark = pytest.mark.anyio

SUCCEEDED = (Status.SUCCEEDED, FinishReason.STOP)
MIB = 1024 * 1024


def started() -> Started:
    return Started(datetime.now(UTC), 3)


MARK = (("x-request-id", "marked"),)
"""On calls whose log lines a test reads: an earlier test's server may still write its last ones."""
BOUND = [structlog.contextvars.merge_contextvars]


async def logged(lines: list, event: str = "rpc_done", count: int = 1, request_id: str = "marked") -> list:
    """Wait for log lines of marked calls: a client has its answer before the server writes them."""
    while True:
        found = [line for line in lines if line["event"] == event and line.get("request_id") == request_id]
        if len(found) >= count:
            return found
        await anyio.lowlevel.checkpoint()


# -------------------------------------------------------------------------------- the usual course


async def test_predict_says_accepted_at_once_and_then_streams_to_the_end():
    with anyio.fail_after(10):
        async with serving() as rpc:
            call = rpc.predictions.Predict(predict_request(labels={"k": "v"}))
            first = await call.read()
            assert first.accepted.prediction_id == "p0" and (first.first_sequence, first.sequence) == (1, 1)
            assert rpc.runtime.created[0].attached and rpc.runtime.created[0].labels == (("k", "v"),)
            rpc.runtime.append("p0", started(), Output("a", (1,), 1), Output("b", (2,), 1), Log("line"))
            rpc.runtime.end("p0", *SUCCEEDED)
            rest = await read_all(call)
            kinds = [message.WhichOneof("event") for message in rest]
            assert kinds == ["started", "output", "log", "completed"]
            assert (rest[1].output.text, list(rest[1].output.token_ids)) == ("ab", [1, 2])
            assert (rest[1].first_sequence, rest[1].sequence) == (3, 4)
            assert rest[-1].completed.status == pb.STATUS_SUCCEEDED
            assert await call.code() is grpc.StatusCode.OK and rpc.runtime.left == []


async def test_a_failed_generation_is_data_and_its_stream_ends_ok():
    with anyio.fail_after(10):
        async with serving() as rpc:
            call = rpc.predictions.Predict(predict_request())
            await call.read()
            rpc.runtime.end("p0", Status.FAILED, FinishReason.ERROR, "the engine broke")
            (end,) = await read_all(call)
            assert end.completed.error == "the engine broke"
            assert await call.code() is grpc.StatusCode.OK


async def test_a_request_id_seen_before_streams_the_earlier_prediction_from_its_start():
    with anyio.fail_after(10):
        async with serving() as rpc:
            first = rpc.predictions.Predict(predict_request(request_id="r1"))
            await first.read()
            rpc.runtime.append("p0", started(), Output("a", (1,), 1))
            rpc.runtime.end("p0", *SUCCEEDED)
            await read_all(first)
            again = await read_all(rpc.predictions.Predict(predict_request(request_id="r1")))
            assert again[0].accepted.prediction_id == "p0" and again[-1].sequence == 4
            other = await failure(rpc.predictions.Predict(predict_request("other", request_id="r1")))
            assert (other.code, other.reason) == (grpc.StatusCode.ALREADY_EXISTS, "ID_CONFLICT")
            assert len(rpc.runtime.created) == 1


async def test_create_get_cancel_and_list_agree():
    with anyio.fail_after(10):
        async with serving() as rpc:
            message = spb.CreatePredictionRequest(
                model="local/test", generation=pb.GenerationRequest(prompt="x"), request_id="r1"
            )
            made = await rpc.predictions.CreatePrediction(message)
            assert (made.id, made.status, made.attached) == ("p0", pb.STATUS_STARTING, False)
            rpc.runtime.append("p0", started(), Output("a"), Output("b"), Log("line"))
            got = await rpc.predictions.GetPrediction(spb.GetPredictionRequest(id="p0"))
            assert (list(got.output), got.logs, got.request.prompt) == (["a", "b"], "line", "x")
            bare = await rpc.predictions.GetPrediction(spb.GetPredictionRequest(id="p0", omit_data=True))
            assert (list(bare.output), bare.logs, bare.HasField("request")) == ([], "", False)
            again = await rpc.predictions.CreatePrediction(message)
            assert (again.id, list(again.output)) == ("p0", ["a", "b"])
            for _ in range(2):
                canceled = await rpc.predictions.CancelPrediction(spb.CancelPredictionRequest(id="p0"))
                assert (canceled.status, list(canceled.output)) == (pb.STATUS_CANCELED, ["a", "b"])
            listed = await rpc.predictions.ListPredictions(spb.ListPredictionsRequest())
            assert [p.id for p in listed.predictions] == ["p0"] and not listed.predictions[0].output
            rpc.runtime.remove_data("p0")
            gone = await rpc.predictions.GetPrediction(spb.GetPredictionRequest(id="p0"))
            assert gone.data_removed and not gone.output and not gone.HasField("request")


async def test_a_wait_returns_with_the_end_or_when_it_is_over():
    with anyio.fail_after(10):
        async with serving() as rpc:
            call = rpc.predictions.Predict(predict_request())
            await call.read()
            short = spb.GetPredictionRequest(id="p0", wait=Duration(nanos=1_000_000))
            assert (await rpc.predictions.GetPrediction(short)).status == pb.STATUS_STARTING
            long = rpc.predictions.GetPrediction(spb.GetPredictionRequest(id="p0", wait=Duration(seconds=60)))
            await open_calls(rpc, 2)
            rpc.runtime.end("p0", Status.CANCELED, FinishReason.DEADLINE)
            assert (await long).finish_reason == pb.FINISH_REASON_DEADLINE


async def test_a_stream_resumes_after_any_sequence_and_opens_before_there_is_news():
    with anyio.fail_after(10):
        async with serving() as rpc:
            created = rpc.predictions.Predict(predict_request())
            await created.read()
            rpc.runtime.append("p0", started())
            call = rpc.predictions.StreamPrediction(spb.StreamPredictionRequest(id="p0", after_sequence=2))
            await call.initial_metadata()
            rpc.runtime.append("p0", Output("a"))
            message = await call.read()
            assert (message.first_sequence, message.output.text) == (3, "a")
            rpc.runtime.end("p0", *SUCCEEDED)
            assert [m.sequence for m in await read_all(call)] == [4]
            beyond = spb.StreamPredictionRequest(id="p0", after_sequence=99)
            assert await read_all(rpc.predictions.StreamPrediction(beyond)) == []


async def test_a_caller_that_wants_the_acceptance_alone_holds_the_prediction():
    with anyio.fail_after(10):
        async with serving() as rpc:
            request = predict_request()
            request.accepted_only = True
            call = rpc.predictions.Predict(request)
            assert (await call.read()).accepted.prediction_id == "p0"
            rpc.runtime.append("p0", started(), Output("a"))
            rpc.runtime.end("p0", *SUCCEEDED)
            assert await call.read() is grpc.aio.EOF and await call.code() is grpc.StatusCode.OK
            held = rpc.predictions.Predict(request)
            assert (await held.read()).accepted.prediction_id == "p1"
            held.cancel()
            await rpc.runtime.until_left()
            assert rpc.runtime.left == ["p1"]


async def test_pages_follow_on_and_one_of_large_requests_is_shorter_than_asked():
    with anyio.fail_after(30):
        async with serving(channel_options=[("grpc.max_receive_message_length", 8 * MIB)]) as rpc:
            for i in range(7):
                message = spb.CreatePredictionRequest(
                    model="local/test", generation=pb.GenerationRequest(prompt="x" * (2 * MIB + i))
                )
                await rpc.predictions.CreatePrediction(message)
            seen, token, pages = [], "", 0
            while pages == 0 or token:
                page = await rpc.predictions.ListPredictions(spb.ListPredictionsRequest(page_token=token))
                seen += [p.id for p in page.predictions]
                token, pages = page.next_page_token, pages + 1
            assert seen == [f"p{i}" for i in reversed(range(7))] and pages > 1


async def test_models_are_listed_found_and_count_tokens():
    with anyio.fail_after(10):
        async with serving() as rpc:
            (model,) = (await rpc.model_stub.ListModels(mpb.ListModelsRequest())).models
            assert (model.name, model.state, model.load.slots) == ("local/test", mpb.MODEL_STATE_READY, 4)
            assert await rpc.model_stub.GetModel(mpb.GetModelRequest(name="local/test")) == model
            count = mpb.CountTokensRequest(model="local/test", prompt="a b c")
            assert (await rpc.model_stub.CountTokens(count)).input_tokens > 0
            missing = await failure(rpc.model_stub.GetModel(mpb.GetModelRequest(name="no/such")))
            assert (missing.code, missing.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")


# ----------------------------------------------------------------------------------------- errors

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TailraceError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_every_error_reaches_the_caller_with_its_code_and_details(kind: type[TailraceError]):
    bad = (FieldViolation("prompt", "must not be empty"),)
    error = kind(bad) if issubclass(kind, InvalidRequest) else kind("what happened")
    with anyio.fail_after(10):
        async with serving() as rpc:
            rpc.runtime.refuse = error
            for call in (
                rpc.predictions.Predict(predict_request()),
                rpc.predictions.GetPrediction(spb.GetPredictionRequest(id="p0")),
            ):
                got = await failure(call)
                assert (got.code, got.message, got.reason) == (CODES[kind.reason], error.message, kind.reason)
                assert (got.retry is not None) == kind.retryable
                fields = [v.field for v in got.bad.field_violations] if got.bad else []
                assert fields == (["prompt"] if issubclass(kind, InvalidRequest) else [])


@pytest.mark.parametrize(
    ("method", "message", "field"),
    [
        ("Predict", spb.PredictRequest(model="a/b"), "input"),
        ("Predict", predict_request(cancel_after=Duration(seconds=1)), "cancel_after"),
        ("Predict", predict_request(""), "prompt"),
        ("GetPrediction", spb.GetPredictionRequest(), "id"),
        ("CancelPrediction", spb.CancelPredictionRequest(), "id"),
        ("ListPredictions", spb.ListPredictionsRequest(page_size=-1), "page_size"),
        ("ListPredictions", spb.ListPredictionsRequest(page_token="?"), "page_token"),
        ("StreamPrediction", spb.StreamPredictionRequest(), "id"),
        ("StreamPrediction", spb.StreamPredictionRequest(id="p0", after_sequence=-1), "after_sequence"),
    ],
)
async def test_a_bad_field_is_named(method: str, message: object, field: str):
    with anyio.fail_after(10):
        async with serving() as rpc:
            got = await failure(getattr(rpc.predictions, method)(message))
            assert (got.code, got.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
            assert [v.field for v in got.bad.field_violations] == [field]


async def test_an_unknown_exception_is_internal_and_its_text_stays_in_the_log():
    with anyio.fail_after(10), structlog.testing.capture_logs(BOUND) as lines:
        async with serving() as rpc:
            rpc.runtime.refuse = RuntimeError("secret")
            got = await failure(rpc.predictions.Predict(predict_request(), metadata=MARK))
            assert (got.code, got.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
            assert "secret" not in got.message
            assert (await logged(lines, "rpc_failed"))[0]["exc_info"]
            assert (await logged(lines))[0]["outcome"] == "error"


async def test_a_huge_error_text_hides_neither_code_nor_reason():
    with anyio.fail_after(10):
        async with serving() as rpc:
            rpc.runtime.refuse = QueueFull("a\n\0😀" * 20_000)
            got = await failure(rpc.predictions.Predict(predict_request()))
            assert (got.code, got.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
            assert len(got.message.encode()) <= 1024 and got.message.startswith("a\n\ufffd😀")


async def test_a_prompt_above_a_limit_is_refused_with_the_limit():
    with anyio.fail_after(30):
        async with serving() as rpc:
            big = await failure(rpc.predictions.Predict(predict_request("x" * 5_000_000)))
            assert (big.code, big.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
            assert "4194304" in big.message and big.bad.field_violations[0].field == "prompt"
            huge = await failure(rpc.predictions.Predict(predict_request("x" * 20_000_000)))
            assert huge.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert str(8 * MIB) in huge.message  # the core's own words: it never reaches us
            await rpc.predictions.ListPredictions(spb.ListPredictionsRequest())


async def test_megabytes_of_logprobs_come_in_messages_any_client_takes():
    top = tuple(TopLogprob("x" * 16, b"x" * 16, i, -1.0) for i in range(20))
    output = Output("x", (1,), 1, (TokenLogprob("x", b"x", 1, -0.5, top),))
    with anyio.fail_after(60):
        async with serving() as rpc:
            call = rpc.predictions.Predict(predict_request())
            await call.read()
            rpc.runtime.append("p0", started(), *[output] * 6000)
            rpc.runtime.end("p0", *SUCCEEDED)
            rest = await read_all(call)
            sizes = [message.ByteSize() for message in rest]
            assert sum(sizes) > 6_000_000 and max(sizes) < MIB
            assert sum(len(message.output.logprobs) for message in rest) == 6000


# ------------------------------------------------------------------------- calls that end early


async def test_a_client_that_cancels_leaves_the_cursor_at_once():
    with anyio.fail_after(10):
        async with serving() as rpc:
            call = rpc.predictions.Predict(predict_request())
            await call.read()
            call.cancel()
            await rpc.runtime.until_left()
            assert rpc.runtime.left == ["p0"]


async def test_a_client_that_cancels_while_a_write_is_blocked_leaves_the_cursor():
    with anyio.fail_after(10):
        async with serving() as rpc:
            call = rpc.predictions.Predict(predict_request())
            await call.read()
            rpc.runtime.append("p0", started(), *[Output("x" * 100_000)] * 50)
            while not any(c.write_began < float("inf") for c in rpc.server.calls.open):
                await anyio.lowlevel.checkpoint()
            call.cancel()
            await rpc.runtime.until_left()
            assert rpc.runtime.left == ["p0"] and len(rpc.server.calls) == 0


async def test_a_deadline_ends_the_call_and_leaves_the_cursor():
    with anyio.fail_after(10):
        async with serving() as rpc:
            call = rpc.predictions.Predict(predict_request(), timeout=0.2)
            await call.read()
            assert (await failure(call)).code is grpc.StatusCode.DEADLINE_EXCEEDED
            await rpc.runtime.until_left()
            assert rpc.runtime.left == ["p0"]


async def test_the_access_line_tells_how_each_call_ended():
    with anyio.fail_after(10), structlog.testing.capture_logs(BOUND) as lines:
        async with serving() as rpc:
            finished = rpc.predictions.Predict(predict_request(), metadata=MARK)
            await finished.read()
            rpc.runtime.end("p0", Status.CANCELED, FinishReason.CANCELED)
            await read_all(finished)
            await logged(lines, count=1)
            canceled = rpc.predictions.Predict(predict_request(), metadata=MARK)
            await canceled.read()
            canceled.cancel()
            await logged(lines, count=2)
            late = rpc.predictions.Predict(predict_request(), timeout=0.2, metadata=MARK)
            await failure(late)
            await logged(lines, count=3)
            missing = spb.GetPredictionRequest(id="none")
            await failure(rpc.predictions.GetPrediction(missing, metadata=MARK))
            done = await logged(lines, count=4)
            assert [line["outcome"] for line in done] == ["finished", "canceled", "deadline", "error"]
            codes = ["OK", "CANCELLED", "DEADLINE_EXCEEDED", "NOT_FOUND"]
            assert [line["code"] for line in done] == codes
            assert all(line["duration_ms"] >= 0 for line in done)
            assert done[0]["method"] == "/tailrace.v1.PredictionService/Predict"


async def test_a_reader_that_takes_nothing_is_let_go_and_told_so_when_it_reads_on():
    with anyio.fail_after(20):
        async with serving(ServerOptions(port=0, stall_limit=timedelta(seconds=0.1))) as rpc:
            call = rpc.predictions.Predict(predict_request())
            await call.read()
            rpc.runtime.append("p0", started(), *[Output("x" * 100_000)] * 50)
            await rpc.runtime.until_left()
            seen = []
            with pytest.raises(grpc.aio.AioRpcError):
                while True:
                    seen.append(await call.read())
            got = await failure(call)
            assert (got.code, got.reason) == (grpc.StatusCode.ABORTED, "READER_TOO_SLOW")
            assert got.retry is not None
            again = rpc.predictions.StreamPrediction(
                spb.StreamPredictionRequest(id="p0", after_sequence=seen[-1].sequence)
            )
            assert (await again.read()).first_sequence == seen[-1].sequence + 1


async def test_a_reader_that_waits_for_news_is_no_slow_reader():
    with anyio.fail_after(20):
        async with serving(ServerOptions(port=0, stall_limit=timedelta(seconds=0.05))) as rpc:
            call = rpc.predictions.Predict(predict_request())
            await call.read()
            for _ in range(8):
                await rpc.server.calls.swept.wait()
            rpc.runtime.end("p0", Status.CANCELED, FinishReason.CANCELED)
            assert [m.sequence for m in await read_all(call)] == [2]


# --------------------------------------------------------------------------------------- metadata


@pytest.mark.parametrize("given", ["abc-1", "  abc-1 ", "x" * 128])
async def test_the_callers_request_id_is_in_the_log(given: str):
    with anyio.fail_after(10), structlog.testing.capture_logs(BOUND) as lines:
        async with serving() as rpc:
            metadata = (("x-request-id", given),)
            await rpc.predictions.ListPredictions(spb.ListPredictionsRequest(), metadata=metadata)
            await logged(lines, request_id=given.strip())


@pytest.mark.parametrize("metadata", [(), (("x-request-id", ""),), (("x-request-id", "x" * 129),)])
async def test_without_a_fit_request_id_the_log_has_one_of_ours(metadata: tuple):
    with anyio.fail_after(10), structlog.testing.capture_logs(BOUND) as lines:
        async with serving() as rpc:
            await rpc.model_stub.ListModels(mpb.ListModelsRequest(), metadata=metadata)
            while not (ours := [x for x in lines if x.get("method", "").endswith("/ListModels")]):
                await anyio.lowlevel.checkpoint()
            assert all(len(bytes.fromhex(line["request_id"])) == 8 for line in ours)


async def test_any_metadata_a_client_can_send_is_taken():
    metadata = (
        *MARK,
        ("authorization", "Bearer x"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("with_underscore", " "),
        ("with.dot", ""),
        ("twice", "1"),
        ("twice", "2"),
        ("odd-bin", bytes(range(256))),
        ("x-large", "x" * 6000),
    )
    with anyio.fail_after(10), structlog.testing.capture_logs(BOUND) as lines:
        async with serving() as rpc:
            await rpc.predictions.ListPredictions(spb.ListPredictionsRequest(), metadata=metadata)
            (line,) = await logged(lines)
            assert line["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
            assert not {"authorization", "x-large"} & set(line)


# --------------------------------------------------------------------------------------- webhooks


async def test_a_webhook_is_taken_and_shown_without_its_context():
    with anyio.fail_after(10):
        async with serving() as rpc:
            hook = pb.Webhook(url="https://h.example/x", events=[pb.WEBHOOK_EVENT_LOGS], context='{"a":1}')
            request = predict_request()
            made = await rpc.predictions.CreatePrediction(
                spb.CreatePredictionRequest(
                    model=request.model, generation=request.generation, webhook=hook, prediction_id="mine"
                )
            )
            new = rpc.runtime.created[0]
            assert new.webhook == Webhook(hook.url, (WebhookEvent.LOGS,), hook.context)
            assert new.prediction_id == "mine"
            hook.context = ""
            assert made.webhook == hook
            assert not (await rpc.predictions.CreatePrediction(create_request())).HasField("webhook")


def create_request(**fields: object) -> spb.CreatePredictionRequest:
    request = predict_request()
    return spb.CreatePredictionRequest(model=request.model, generation=request.generation, **fields)


@pytest.mark.parametrize(
    ("hook", "field"),
    [
        (pb.Webhook(url="https://h", events=[99]), "webhook.events"),
        (pb.Webhook(url="https://h", events=[pb.WEBHOOK_EVENT_UNSPECIFIED]), "webhook.events"),
        (pb.Webhook(url="https://h", context="x" * 65_537), "webhook.context"),
    ],
)
async def test_a_faulty_webhook_is_named(hook: pb.Webhook, field: str):
    with anyio.fail_after(10):
        async with serving() as rpc:
            failed = await failure(rpc.predictions.CreatePrediction(create_request(webhook=hook)))
            assert failed.code is grpc.StatusCode.INVALID_ARGUMENT and failed.bad is not None
            assert [violation.field for violation in failed.bad.field_violations] == [field]


async def test_calls_are_listed_for_one_prediction_or_as_dead_letters():
    with anyio.fail_after(10):
        async with serving() as rpc:
            now = datetime.now(UTC)
            await rpc.predictions.CreatePrediction(create_request())
            dead = Delivery(
                "msg_p0_completed_4", "p0", WebhookEvent.COMPLETED, "https://h", now, None,
                attempts=7, given_up=True, last_status=500, last_error="no", attempted_at=now,
            )  # fmt: skip
            waiting = Delivery("msg_p1_completed_4", "p1", WebhookEvent.COMPLETED, "https://h", now, now)
            rpc.webhooks.made += [dead, waiting]
            ask = rpc.predictions.ListWebhookDeliveries
            (found,) = (await ask(spb.ListWebhookDeliveriesRequest(prediction_id="p0"))).deliveries
            assert (found.id, found.prediction_id, found.event) == (dead.id, "p0", pb.WEBHOOK_EVENT_COMPLETED)
            assert (found.attempts, found.given_up, found.delivered) == (7, True, False)
            assert (found.last_status, found.last_error) == (500, "no")
            assert found.attempt_time.ToDatetime(UTC) == found.create_time.ToDatetime(UTC) == now
            assert not found.HasField("next_time")
            assert list((await ask(spb.ListWebhookDeliveriesRequest())).deliveries) == [found]
            unknown = await failure(ask(spb.ListWebhookDeliveriesRequest(prediction_id="nope")))
            assert unknown.reason == "PREDICTION_NOT_FOUND"


async def test_the_secret_is_told():
    with anyio.fail_after(10):
        async with serving() as rpc:
            for owner in ("", "ann"):
                answer = await rpc.predictions.GetWebhookSecret(spb.GetWebhookSecretRequest(owner=owner))
                assert answer.key == rpc.webhooks.key_of(owner)
