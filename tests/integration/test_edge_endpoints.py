"""Lists, models, versions, deployments, what is not served: the real edge before a scripted service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import anyio
import grpc
import pytest

from edge.replicate.catalog import name_version_id
from edge.replicate.deployments import parse_deployments
from protos.tailrace.v1 import prediction_service_pb2
from tests.support.edge_server import RunningEdge, edge_settings, run_edge
from tests.support.fake_service import MODEL, WEIGHTS, FakeService, Fault, model, serve_fake

LIMIT_S = 20
INPUT = {"input": {"prompt": "x"}}
PROBLEM = "application/problem+json"
DEPLOYMENTS = parse_deployments(
    """{
    "acme/chat": {
        "model": "acme/llm",
        "input": {"system_prompt": "Be brief.", "max_tokens": 64, "temperature": 0.5},
        "limits": {"max_tokens": 128, "prompt_bytes": 32}
    },
    "acme/gone": {"model": "acme/unserved"}
    }"""
)


@asynccontextmanager
async def edge_on(service: FakeService, **changes: object) -> AsyncIterator[RunningEdge]:
    with anyio.fail_after(LIMIT_S):
        async with serve_fake(service), run_edge(edge_settings(service.address, **changes)) as edge:
            yield edge


def listed(service: FakeService) -> prediction_service_pb2.ListPredictionsRequest:
    request = service.requests("ListPredictions")[-1]
    assert isinstance(request, prediction_service_pb2.ListPredictionsRequest)
    return request


def created(service: FakeService) -> prediction_service_pb2.CreatePredictionRequest:
    request = service.requests("CreatePrediction")[-1]
    assert isinstance(request, prediction_service_pb2.CreatePredictionRequest)
    return request


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_a_list_is_read_by_next_to_its_end(prefix: str) -> None:
    service = FakeService(texts=["a"])
    async with edge_on(service) as edge:
        for _ in range(103):
            await edge.client.post("/predictions", json={"version": MODEL, **INPUT})
        first = (await edge.client.get(f"{prefix}/predictions")).json()
        assert first["next"].startswith(f"{edge.url}/v1/predictions?cursor=") and first["previous"] is None
        second = (await edge.client.get(first["next"])).json()
        assert (second["next"], second["previous"]) == (None, None)
        ids = [found["id"] for found in first["results"] + second["results"]]
        assert ids == [*reversed(service.predictions)] and len(first["results"]) == 100
        newest = first["results"][0]
        assert (newest["status"], newest["output"], newest["logs"]) == ("succeeded", None, "")
        assert newest["input"] == {"prompt": "x"} and newest["metrics"]["output_token_count"] == 1


async def test_an_empty_list_has_null_on_both_sides() -> None:
    # B077: "" made clients loop.
    async with edge_on(FakeService()) as edge:
        for path in ("/predictions", "/predictions?source=web", "/trainings", "/collections", "/deployments"):
            empty = {"next": None, "previous": None, "results": []}
            assert (await edge.client.get(path)).json() == empty


@pytest.mark.parametrize(
    ("query", "after", "before"),
    [
        ("created_after=2026-11-30T18:47:08Z", "2026-11-30T18:47:07.999999", None),
        ("created_after=2026-11-30T18:47:08%2B02:00", "2026-11-30T16:47:07.999999", None),
        ("created_after=2026-11-30T18:47:08+02:00", "2026-11-30T16:47:07.999999", None),
        ("created_before=2026-11-30", None, "2026-11-30T00:00:00"),
        ("created_before=2026-11-30T18:47:08.5&created_after=0001-01-01", "0001-01-01T23:59:59.999999",
         "2026-11-30T18:47:08.5"),
    ],
)  # fmt: skip
async def test_time_filters_reach_the_service(query: str, after: str | None, before: str | None) -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        assert (await edge.client.get(f"/v1/predictions?{query}")).status_code == 200
        asked = listed(service)
        for name, wanted in (("created_after", after), ("created_before", before)):
            assert asked.HasField(name) == (wanted is not None)
            if wanted is not None:
                moment = datetime.fromisoformat(wanted).replace(tzinfo=UTC)
                assert getattr(asked, name).ToDatetime(tzinfo=UTC) == moment


async def test_next_repeats_the_filters() -> None:
    service = FakeService(texts=["a"])
    async with edge_on(service) as edge:
        for _ in range(101):
            await edge.client.post("/predictions", json={"version": MODEL, **INPUT})
        query = "created_after=2026-01-01T00:00:00Z&created_before=2027-01-01T00:00:00%2B01:00&source=api"
        following = (await edge.client.get(f"/v1/predictions?{query}")).json()["next"]
        given = parse_qs(urlsplit(following).query)
        assert given["created_after"] == ["2026-01-01T00:00:00.000000Z"]
        assert given["created_before"] == ["2026-12-31T23:00:00.000000Z"] and given["source"] == ["api"]
        first = listed(service)
        assert len((await edge.client.get(following)).json()["results"]) == 1
        assert (listed(service).created_after, listed(service).created_before) == (
            first.created_after,
            first.created_before,
        )


@pytest.mark.parametrize(
    "query",
    ["cursor=5", "cursor=", "cursor=%00", "cursor=%ff", "cursor=" + "a" * 7000, "source=nowhere", "source=",
     "created_after=yesterday", "created_before=", "created_after=2026-13-01", "created_after=%00",
     "created_after=9999-12-31T23:59:59-12:00"],
)  # fmt: skip
async def test_a_bad_list_query_is_a_422_that_names_it(query: str) -> None:
    # B078
    async with edge_on(FakeService()) as edge:
        answer = await edge.client.get(f"/v1/predictions?{query}")
        assert (answer.status_code, answer.headers["content-type"]) == (422, PROBLEM)
        assert answer.json()["invalid_fields"][0]["field"] == query.partition("=")[0]
        assert (await edge.client.get("/v1/predictions?cursor=" + "a" * 10_000)).status_code == 414


@pytest.mark.parametrize("path", ["/models", "/models/acme/llm/versions", "/deployments", "/collections"])
async def test_lists_of_one_page_know_no_cursor(path: str) -> None:
    async with edge_on(FakeService()) as edge:
        assert (await edge.client.get(f"/v1{path}?cursor=5")).status_code == 422


async def test_models_have_their_one_version() -> None:
    service = FakeService(models=[model(), model("acme/raw", chat_template=False)])
    service.models[1].weights_sha256 = ""
    async with edge_on(service) as edge:
        page = (await edge.client.get("/v1/models")).json()
        assert [found["name"] for found in page["results"]] == ["llm", "raw"]
        llm = (await edge.client.get("/v1/models/acme/llm")).json()
        assert llm == page["results"][0] and llm["latest_version"]["id"] == WEIGHTS
        assert (await edge.client.get(llm["url"])).json() == llm
        versions = (await edge.client.get("/v1/models/acme/llm/versions")).json()["results"]
        assert versions == [llm["latest_version"]]
        for name in (WEIGHTS, "hidden"):
            answer = await edge.client.get(f"/v1/models/acme/llm/versions/{name}")
            assert answer.json() == versions[0]
        raw = (await edge.client.get("/v1/models/acme/raw")).json()["latest_version"]
        assert raw["id"] == name_version_id("acme/raw")
        schemas = raw["openapi_schema"]["components"]["schemas"]
        assert "messages" not in schemas["Input"]["properties"] and "Message" not in schemas
        answer = await edge.client.post("/v1/predictions", json={"version": raw["id"], **INPUT})
        assert answer.json()["model"] == "acme/raw"
        named = f"acme/raw:{raw['id']}"
        assert (
            await edge.client.post("/v1/predictions", json={"version": named, **INPUT})
        ).status_code == 201


async def test_a_versions_schema_is_what_validates() -> None:
    async with edge_on(FakeService()) as edge:
        version = (await edge.client.get("/v1/models/acme/llm/versions/hidden")).json()
        schemas = version["openapi_schema"]["components"]["schemas"]
        assert schemas["Output"] == {
            "type": "array",
            "items": {"type": "string"},
            "title": "Output",
            "x-cog-array-type": "iterator",
            "x-cog-array-display": "concatenate",
        }
        fields = schemas["Input"]["properties"]
        assert next(iter(fields)) == "prompt" and fields["prompt"]["x-order"] == 0
        assert fields["temperature"]["type"] == "number" and fields["temperature"]["maximum"] == 2
        over = {"input": {"prompt": "x", "temperature": 2.1}}
        assert (await edge.client.post("/v1/models/acme/llm/predictions", json=over)).status_code == 422
        assert all(field["description"] for field in fields.values())


async def test_readme_examples_and_search() -> None:
    service = FakeService(models=[model(), model("acme/other")])
    async with edge_on(service) as edge:
        readme = await edge.client.get("/v1/models/acme/llm/readme")
        assert readme.headers["content-type"].startswith("text/plain") and "# acme/llm" in readme.text
        assert (await edge.client.get("/v1/models/acme/llm/examples")).json()["results"] == []
        found = (await edge.client.get("/v1/search?query=OTH")).json()
        assert [entry["model"]["name"] for entry in found["models"]] == ["other"]
        answer = await edge.client.request(
            "QUERY", "/v1/models", content="llm", headers={"content-type": "text/plain"}
        )
        assert [entry["name"] for entry in answer.json()["results"]] == ["llm"]


@pytest.mark.parametrize("name", ["acme/nope", "%00/x", "a%2Fb/c", "%ff/x", "a" * 3000 + "/x", "한/글"])
async def test_an_unknown_model_is_a_404_everywhere(name: str) -> None:
    async with edge_on(FakeService()) as edge:
        for rest in ("", "/versions", "/versions/hidden", "/readme", "/examples"):
            answer = await edge.client.get(f"/v1/models/{name}{rest}")
            assert (answer.status_code, answer.headers["content-type"]) == (404, PROBLEM)
        answer = await edge.client.get(f"/v1/models/{MODEL}/versions/{'0' * 64}")
        assert (answer.status_code, answer.json()["title"]) == (404, "Version not found")


async def test_a_deployment_fills_in_its_defaults_and_names_itself() -> None:
    service = FakeService(texts=["a"])
    async with edge_on(service, deployments=DEPLOYMENTS) as edge:
        answer = await edge.client.post(
            "/v1/deployments/acme/chat/predictions",
            json={"input": {"prompt": "x", "temperature": None}},
            headers={"prefer": "wait"},
        )
        assert (answer.status_code, answer.headers["preference-applied"]) == (201, "wait")
        made = answer.json()
        assert (made["deployment"], made["model"], made["version"]) == ("acme/chat", MODEL, "hidden")
        assert made["input"] == {
            "prompt": "x",
            "system_prompt": "Be brief.",
            "max_tokens": 64,
            "temperature": 0.5,
        }
        asked = created(service).generation
        assert (asked.stopping.max_tokens, asked.sampling.temperature) == (64, 0.5)
        assert (await edge.client.get(answer.headers["location"])).json() == made
        plain = await edge.client.post("/v1/predictions", json={"version": MODEL, **INPUT})
        assert "deployment" not in plain.json()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"prompt": "x", "max_tokens": 129}, "input.max_tokens"),
        ({"prompt": "x", "max_new_tokens": 129}, "input.max_new_tokens"),
        ({"prompt": "x" * 40}, "input"),
        ({}, "input"),
    ],
)
async def test_a_deployments_limits_hold(given: dict[str, object], field: str) -> None:
    service = FakeService()
    async with edge_on(service, deployments=DEPLOYMENTS) as edge:
        url = "/v1/deployments/acme/chat/predictions"
        answer = await edge.client.post(url, json={"input": given})
        assert answer.status_code == 422 and answer.json()["invalid_fields"][0]["field"] == field
        assert not service.predictions
        fine = {"prompt": "x", "max_new_tokens": 128}
        assert (await edge.client.post(url, json={"input": fine})).status_code == 201
        for body in (None, 5, [], {"input": 5}, {}):
            assert (await edge.client.post(url, json=body)).status_code in (400, 422)


async def test_deployments_are_listed_and_an_unknown_one_is_a_404() -> None:
    async with edge_on(FakeService(), deployments=DEPLOYMENTS) as edge:
        page = (await edge.client.get("/v1/deployments")).json()
        assert [found["name"] for found in page["results"]] == ["chat", "gone"]
        chat = (await edge.client.get("/v1/deployments/acme/chat")).json()
        release = chat["current_release"]
        assert chat == page["results"][0]
        assert (release["number"], release["model"], release["version"]) == (1, MODEL, WEIGHTS)
        assert release["created_by"]["username"] and release["configuration"]["hardware"] == "local"
        for method, path in (("GET", ""), ("POST", "/predictions")):
            answer = await edge.client.request(method, f"/v1/deployments/acme/nope{path}", json=INPUT)
            assert (answer.status_code, answer.json()["title"]) == (404, "Deployment not found")
        answer = await edge.client.post("/v1/deployments/acme/gone/predictions", json=INPUT)
        assert (answer.status_code, answer.json()["title"]) == (404, "Model not found")


async def test_account_and_hardware() -> None:
    async with edge_on(FakeService()) as edge:
        assert (await edge.client.get("/v1/account")).json()["type"] in ("user", "organization")
        assert (await edge.client.get("/v1/hardware")).json() == [
            {"sku": "local", "name": "The machine that this service runs on"}
        ]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/files"), ("GET", "/files"), ("GET", "/files/x"), ("DELETE", "/files/x"),
        ("GET", "/files/x/download?owner=a&expiry=1&signature=s"),
        ("POST", "/models/acme/llm/versions/hidden/trainings"),
    ],
)  # fmt: skip
async def test_what_is_not_served_says_so_and_not_to_retry(method: str, path: str) -> None:
    async with edge_on(FakeService()) as edge:
        content = b"x" * 3_000_000 if method == "POST" else None
        answer = await edge.client.request(method, f"/v1{path}", content=content)
        assert (answer.status_code, answer.headers["x-should-retry"]) == (501, "false")
        assert answer.headers["content-type"] == PROBLEM and answer.json()["status"] == 501


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PATCH", "/v1/models/acme/llm", "GET, HEAD"),
        ("DELETE", "/v1/models/acme/llm", "GET, HEAD"),
        ("POST", "/v1/models", "GET, HEAD, QUERY"),
        ("DELETE", "/v1/models/acme/llm/versions/hidden", "GET, HEAD"),
        ("POST", "/v1/deployments", "GET, HEAD"),
        ("PATCH", "/deployments/acme/chat", "GET, HEAD"),
        ("DELETE", "/v1/predictions", "GET, HEAD, POST"),
    ],
)
async def test_a_405_names_all_methods_of_the_path(method: str, path: str, allow: str) -> None:
    async with edge_on(FakeService()) as edge:
        answer = await edge.client.request(method, path)
        assert (answer.status_code, answer.headers["content-type"]) == (405, PROBLEM)
        assert ", ".join(sorted(answer.headers["allow"].split(", "))) == allow
        options = await edge.client.options(path)
        assert options.status_code == 204


async def test_faults_of_the_service_are_problems_on_lists_too() -> None:
    service = FakeService()
    async with edge_on(service, call_retry_budget=timedelta(0)) as edge:
        service.faults["ListPredictions"].append(Fault(grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE"))
        service.faults["GetModel"].append(Fault(grpc.StatusCode.INTERNAL, "INTERNAL", "SECRET"))
        answer = await edge.client.get("/v1/predictions")
        assert answer.status_code == 503 and answer.headers["retry-after"]
        answer = await edge.client.get("/v1/models/acme/llm")
        assert answer.status_code == 500 and "SECRET" not in answer.text
