"""The OpenAPI document against the edge that gives it: schemathesis sends what it leads to, good and bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.conformance.callers.programs import BIN, FOLDER
from tests.support.pair import MODEL, Pair, script

LIMIT_S = 90
RUN_S = 25
"""How long it goes on making up requests."""

EXAMPLES_EACH = 4
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance"
)


def with_examples(document: dict[str, Any], values: dict[str, str]) -> dict[str, Any]:
    """Return the document with parameters that lead to something that is there."""
    for path, operations in document["paths"].items():
        owner, _, name = ("acme/chat" if path.startswith("/deployments") else MODEL).partition("/")
        known = values | {"owner": owner, "name": name}
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in known:
                    parameter["example"] = known[parameter["name"]]
            media = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if media is not None:
                media["example"] = {"version": MODEL, "input": {"prompt": script(pieces=["a"])}}
    return document


@pytest.mark.timeout(LIMIT_S + 10)
async def test_no_request_that_the_document_leads_to_is_a_server_error(pair: Pair, tmp_path: Path) -> None:
    made = await pair.api.create(script(pieces=["a", " b"]), {"Prefer": "wait"})
    values = {
        "prediction_id": made["id"],
        "token": made["urls"]["stream"].rpartition("/")[2],
        "version_id": "hidden",
    }
    document = with_examples((await pair.http.get(f"{pair.edge.url}/openapi.json")).json(), values)
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    command = [
        str(BIN / "schemathesis"), "--config-file", str(FOLDER / "schemathesis.toml"), "run", "openapi.json",
        "--url", f"{pair.edge.url}/v1", "--checks", CHECKS, "--phases", "examples,coverage,fuzzing",
        "--max-examples", str(EXAMPLES_EACH), "--max-time", str(RUN_S), "--generation-deterministic",
        "--suppress-health-check", "all", "--warnings", "off", "--no-color",
    ]  # fmt: skip
    before = len(pair.edge.log)
    with anyio.fail_after(LIMIT_S):
        done = await anyio.run_process(command, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    lines = [json.loads(line) for line in pair.edge.log[before:].splitlines() if line.startswith("{")]
    statuses = [line["status"] for line in lines if line["event"] == "http_request"]
    assert {status for status in statuses if status >= 500} == {501}
    assert len(statuses) > 100 and statuses.count(200) > 20 and statuses.count(201) > 2
