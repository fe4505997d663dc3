"""Create, get and cancel over HTTP: the real edge on real sockets, a scripted service behind it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

import anyio
import grpc
import pytest

from protos.tailrace.v1 import prediction_pb2, prediction_service_pb2
from tests.support.edge_server import RunningEdge, edge_settings, run_edge
from tests.support.fake_service import MODEL, WEIGHTS, FakeService, Fault, model, serve_fake

LIMIT_S = 20
BODY = {"version": MODEL, "input": {"prompt": "x"}}


@asynccontextmanager
async def edge_on(service: FakeService, **changes: object) -> AsyncIterator[RunningEdge]:
    with anyio.fail_after(LIMIT_S):
        async with serve_fake(service), run_edge(edge_settings(service.address, **changes)) as edge:
            yield edge


def created(service: FakeService) -> list[prediction_service_pb2.CreatePredictionRequest]:
    requests = service.requests("CreatePrediction")
    return [r for r in requests if isinstance(r, prediction_service_pb2.CreatePredictionRequest)]


@pytest.mark.parametrize("path", ["/v1/predictions", "/predictions", "/v1/predictions/", "/predictions/"])
async def test_a_create_answers_at_once_without_output(path: str) -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        answer = await edge.client.post(path, json=BODY)
        assert answer.status_code == 201
        members = answer.json()
        assert (members["status"], members["output"], members["model"]) == ("starting", None, MODEL)
        assert (
            answer.headers["location"]
            == members["urls"]["get"]
            == f"{edge.url}/v1/predictions/{members['id']}"
        )
        assert "preference-applied" not in answer.headers
        (request,) = created(service)
        assert request.request_id and not request.attached
        assert [turn.role for turn in request.generation.chat.messages] == ["user"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/models/acme/llm/predictions", None),
        ("/models/acme/llm/predictions", None),
        ("/v1/predictions", MODEL),
        ("/v1/predictions", f"{MODEL}:{WEIGHTS}"),
        ("/v1/predictions", f"{MODEL}:hidden"),
        ("/v1/predictions", WEIGHTS),
        ("/v1/predictions", "hidden"),
    ],
)
async def test_a_model_is_named_in_the_path_or_as_a_version(path: str, name: str | None) -> None:
    async with edge_on(FakeService()) as edge:
        body = {"input": {"prompt": "x"}} | ({} if name is None else {"version": name})
        answer = await edge.client.post(path, json=body)
        assert (answer.status_code, answer.json()["model"]) == (201, MODEL)


async def test_a_model_field_names_it_too() -> None:
    async with edge_on(FakeService()) as edge:
        answer = await edge.client.post("/v1/predictions", json={"model": MODEL, "input": {"prompt": "x"}})
        assert (answer.status_code, answer.json()["model"]) == (201, MODEL)


@pytest.mark.parametrize("version", ["acme/other", f"{MODEL}:{'c' * 64}", "c" * 64, "nonsense", ""])
async def test_a_version_that_is_not_served_is_a_422(version: str) -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        answer = await edge.client.post("/v1/predictions", json=BODY | {"version": version})
        assert answer.status_code == 422
        assert answer.json()["title"] == "Invalid version or not permitted"
        assert not created(service)


async def test_an_unknown_model_in_the_path_is_a_404() -> None:
    async with edge_on(FakeService()) as edge:
        answer = await edge.client.post("/v1/models/acme/nope/predictions", json={"input": {"prompt": "x"}})
        assert (answer.status_code, answer.json()["title"]) == (404, "Model not found")


async def test_a_model_without_template_gets_raw_text_and_one_that_loads_is_a_503() -> None:
    service = FakeService(models=[model(chat_template=False), model("acme/new", engine="")])
    async with edge_on(service) as edge:
        await edge.client.post("/v1/predictions", json=BODY)
        assert created(service)[0].generation.prompt == "x"
        answer = await edge.client.post("/v1/models/acme/new/predictions", json={"input": {"prompt": "x"}})
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("prefer", "applied"), [("wait", "wait"), ("wait=5", "wait=5"), ("respond-async, wait=120", "wait=60")]
)
async def test_a_wait_answers_with_the_whole_output(prefer: str, applied: str) -> None:
    async with edge_on(FakeService(texts=["a", " b"])) as edge:
        answer = await edge.client.post("/v1/predictions", json=BODY, headers={"prefer": prefer})
        assert answer.status_code == 201 and answer.headers["preference-applied"] == applied
        assert (answer.json()["status"], answer.json()["output"]) == ("succeeded", ["a", " b"])


async def test_a_wait_that_expires_says_starting_without_output() -> None:
    service = FakeService()
    async with edge_on(service) as edge, anyio.create_task_group() as group:

        async def run() -> None:
            (await service.created()).emit("a")

        group.start_soon(run)
        answer = await edge.client.post("/v1/predictions", json=BODY, headers={"prefer": "wait=1"})
        assert answer.status_code == 202 and answer.headers["preference-applied"] == "wait=1"
        assert (answer.json()["status"], answer.json()["output"]) == ("starting", None)
        assert answer.json()["started_at"] is None
        running = (await edge.client.get(answer.headers["location"])).json()
        assert (running["status"], running["output"]) == ("processing", ["a"])


async def test_a_wait_that_cannot_be_watched_still_answers_what_was_created() -> None:
    service = FakeService()
    service.faults["GetPrediction"].append(Fault(grpc.StatusCode.INTERNAL, "INTERNAL"))
    async with edge_on(service) as edge:
        answer = await edge.client.post("/v1/predictions", json=BODY, headers={"prefer": "wait"})
        assert (answer.status_code, answer.json()["status"]) == (202, "starting")


async def test_a_caller_who_goes_away_while_waiting_cancels_nothing() -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        connection = edge.raw()
        body = b'{"version":"acme/llm","input":{"prompt":"x"}}'
        head = (
            f"POST /v1/predictions HTTP/1.1\r\nHost: h\r\nPrefer: wait\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        await anyio.to_thread.run_sync(connection.sendall, head.encode() + body)
        prediction = await service.created()
        while not service.requests("GetPrediction"):
            await anyio.lowlevel.checkpoint()
        connection.close()
        while not edge.log:
            await anyio.lowlevel.checkpoint()
        assert not service.requests("CancelPrediction")
        prediction.emit("a")
        prediction.finish()
        got = await edge.client.get(f"/v1/predictions/{prediction.id}")
        assert got.json()["status"] == "succeeded"


async def test_a_wait_ends_early_when_the_edge_closes() -> None:
    service = FakeService()
    async with edge_on(service) as edge, anyio.create_task_group() as group:

        async def leave() -> None:
            await service.created()
            while not service.requests("GetPrediction"):
                await anyio.lowlevel.checkpoint()
            edge.lifecycle.begin_drain()

        group.start_soon(leave)
        answer = await edge.client.post("/v1/predictions", json=BODY, headers={"prefer": "wait"})
        assert (answer.status_code, answer.json()["status"]) == (202, "starting")


@pytest.mark.parametrize("value", ["4s", "25h", "1x", "-5", "", "1h30", "5 s"])
async def test_a_bad_cancel_after_creates_nothing(value: str) -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        answer = await edge.client.post("/v1/predictions", json=BODY, headers={"cancel-after": value})
        assert answer.status_code == 422
        assert answer.json()["invalid_fields"][0]["field"] == "Cancel-After"
        assert not created(service)


async def test_cancel_after_becomes_the_deadline() -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        answer = await edge.client.post("/v1/predictions", json=BODY, headers={"cancel-after": "1m30s"})
        assert answer.json()["deadline"] == "2026-11-30T18:48:38.234000Z"
        assert created(service)[0].cancel_after.ToTimedelta() == timedelta(seconds=90)


async def test_get_shows_the_growing_output_and_the_end() -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        url = (await edge.client.post("/v1/predictions", json=BODY)).json()["urls"]["get"]
        prediction = await service.created()
        prediction.emit("a")
        first = (await edge.client.get(url)).json()
        prediction.emit("b")
        prediction.finish(prediction_pb2.STATUS_FAILED, "broke")
        last = (await edge.client.get(url)).json()
        assert (first["status"], first["output"], first["completed_at"]) == ("processing", ["a"], None)
        assert (last["status"], last["output"], last["error"]) == ("failed", ["a", "b"], "broke")
        assert last["input"] == {"prompt": "x"} and last["metrics"]["output_token_count"] == 2


async def test_cancel_is_idempotent_and_changes_no_ended_prediction() -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        urls = (await edge.client.post("/v1/predictions", json=BODY)).json()["urls"]
        json_type = {"content-type": "application/json"}
        first = await edge.client.post(urls["cancel"], headers=json_type)
        again = await edge.client.post(urls["cancel"])
        assert first.status_code == again.status_code == 200
        assert first.json() == again.json() and first.json()["status"] == "canceled"
        assert first.json()["output"] is None and first.json()["completed_at"]
        done = (await edge.client.post("/v1/predictions", json=BODY)).json()["urls"]
        (await service.created()).finish()
        assert (await edge.client.post(done["cancel"])).json()["status"] == "succeeded"


@pytest.mark.parametrize("name", ["nope", "a" * 26, "A" * 26, "%00", "%ff", "..", "a" * 5000])
async def test_an_unknown_prediction_is_a_404_problem(name: str) -> None:
    async with edge_on(FakeService()) as edge:
        for method, path in (("GET", ""), ("POST", "/cancel")):
            answer = await edge.client.request(method, f"/v1/predictions/{name}{path}")
            assert answer.status_code in (404, 405)
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["title"] and answer.json()["detail"]


async def test_a_create_whose_answer_was_lost_makes_one_prediction() -> None:
    service = FakeService()
    service.faults["CreatePrediction"].append(Fault(grpc.StatusCode.UNAVAILABLE, after_events=1))
    async with edge_on(service) as edge:
        answer = await edge.client.post("/v1/predictions", json=BODY)
        assert answer.status_code == 201
        first, second = created(service)
        assert first.request_id == second.request_id and len(service.predictions) == 1


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
async def test_a_passing_fault_of_a_read_is_not_seen(code: grpc.StatusCode) -> None:
    service = FakeService(texts=["a"])
    async with edge_on(service) as edge:
        url = (await edge.client.post("/v1/predictions", json=BODY)).json()["urls"]["get"]
        service.faults["GetPrediction"].extend([Fault(code), Fault(code)])
        assert (await edge.client.get(url)).json()["status"] == "succeeded"


async def test_the_first_call_after_a_restart_of_the_service_succeeds() -> None:
    service = FakeService()
    with anyio.fail_after(LIMIT_S):
        async with AsyncExitStack() as stack:
            async with serve_fake(service):
                edge = await stack.enter_async_context(run_edge(edge_settings(service.address)))
                await edge.client.post("/v1/predictions", json=BODY)
            async with serve_fake(service, port=service.port):
                assert (await edge.client.post("/v1/predictions", json=BODY)).status_code == 201


async def test_a_create_while_the_service_is_away_waits_for_it() -> None:
    service = FakeService()
    with anyio.fail_after(LIMIT_S):
        async with serve_fake(service):
            port = service.port
        async with run_edge(edge_settings(service.address)) as edge, anyio.create_task_group() as group:
            answers = []

            async def create() -> None:
                answers.append(await edge.client.post("/v1/predictions", json=BODY))
                group.cancel_scope.cancel()

            group.start_soon(create)
            async with serve_fake(service, port=port):
                await anyio.sleep_forever()
        assert answers[0].status_code == 201


async def test_without_a_service_a_create_is_a_503_and_the_edge_not_ready() -> None:
    with anyio.fail_after(LIMIT_S):
        settings = edge_settings(
            "127.0.0.1:1", call_retry_budget=timedelta(0), call_deadline=timedelta(milliseconds=200)
        )
        async with run_edge(settings) as edge:
            answer = await edge.client.post("/v1/predictions", json=BODY)
            assert answer.status_code in (503, 504) and answer.headers["retry-after"] == "1"
            assert (await edge.client.get("/readyz")).status_code == 503
            assert (await edge.client.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Fault(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_after=timedelta(seconds=7)), 429),
        (Fault(grpc.StatusCode.UNAVAILABLE, "ENGINE_NOT_READY"), 503),
        (Fault(grpc.StatusCode.ALREADY_EXISTS, "ID_CONFLICT"), 409),
        (Fault(grpc.StatusCode.INTERNAL, "INTERNAL", "SECRET"), 500),
        (Fault(grpc.StatusCode.UNKNOWN, "", "SECRET"), 500),
        (
            Fault(grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_EXCEEDED", violations=(("prompt", "too long"),)),
            422,
        ),
    ],
)
async def test_errors_of_the_service_are_problems(fault: Fault, status: int) -> None:
    service = FakeService()
    service.faults["CreatePrediction"].append(fault)
    async with edge_on(service) as edge:
        answer = await edge.client.post("/v1/predictions", json=BODY)
        assert answer.status_code == status and "SECRET" not in answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        if status == 429:
            assert answer.headers["retry-after"] == "7" and answer.json()["retry_after"] == 7
        if status == 422:
            assert answer.json()["invalid_fields"][0]["field"] == "input.prompt"


async def test_the_request_id_and_the_trace_go_to_the_service() -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "grpc-foo": "x"}
        answer = await edge.client.post("/v1/predictions", json=BODY, headers=headers)
        _, _, metadata = service.calls[-1]
        assert metadata["x-request-id"] == answer.headers["x-request-id"]
        assert metadata["traceparent"] == headers["traceparent"] and "grpc-foo" not in metadata


async def test_urls_follow_the_public_url_and_trusted_proxies_only() -> None:
    service = FakeService()
    spoofed = {"x-forwarded-host": "evil.example", "x-forwarded-proto": "https"}
    async with serve_fake(service):
        async with run_edge(edge_settings(service.address, public_url="https://h.example/llm/")) as edge:
            urls = (await edge.client.post("/v1/predictions", json=BODY, headers=spoofed)).json()["urls"]
            assert all(url.startswith("https://h.example/llm/") for url in urls.values())
        async with run_edge(edge_settings(service.address)) as edge:
            urls = (await edge.client.post("/v1/predictions", json=BODY, headers=spoofed)).json()["urls"]
            assert all(url.startswith(edge.url) for url in urls.values())
        async with run_edge(edge_settings(service.address, trusted_proxies=("127.0.0.1",))) as edge:
            urls = (await edge.client.post("/v1/predictions", json=BODY, headers=spoofed)).json()["urls"]
            assert all(url.startswith("https://evil.example/") for url in urls.values())


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json", "*/*", "text/html", "garbage"])
async def test_accept_is_no_gate(accept: str) -> None:
    async with edge_on(FakeService()) as edge:
        answer = await edge.client.post("/v1/predictions", json=BODY, headers={"accept": accept})
        assert (answer.status_code, answer.headers["content-type"]) == (201, "application/json")


async def test_two_edges_in_one_process_share_nothing() -> None:
    service = FakeService(texts=["a"])
    async with edge_on(service) as one, run_edge(edge_settings(service.address)) as two:
        made = (await one.client.post("/v1/predictions", json=BODY)).json()
        assert (await two.client.get(f"/v1/predictions/{made['id']}")).json()["output"] == ["a"]
