"""What is rendered is what the classes of answers say, and so what the OpenAPI document says."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from edge.protocol.public_url import parse_public_base
from edge.replicate import objects
from edge.replicate.catalog import model_object, version_id
from edge.replicate.endpoints import ENDPOINTS
from edge.replicate.listing import ListQuery, render_page
from edge.replicate.openapi import openapi_document
from edge.replicate.render import Links, render_created, render_prediction
from edge.replicate.tokens import StreamTokens
from edge.upstream.events import Status, Usage
from edge.upstream.records import ModelRecord, ModelState, PredictionPage
from tests.support.records import EPOCH, record

BASE = parse_public_base("https://h.example/llm")
LINKS = Links(BASE, StreamTokens(b"0123456789abcdef"))
MODEL = ModelRecord("acme/llm", ModelState.READY, "llama_cpp", 2048, True, "ab" * 32)


@pytest.mark.parametrize("status", list(Status))
def test_a_prediction_is_what_its_class_says(status: Status) -> None:
    ended = EPOCH + timedelta(seconds=3) if status.is_terminal else None
    whole = record(
        status,
        completed_at=ended,
        deadline=EPOCH,
        usage=Usage(1, 0, 1),
        labels=(("deployment", "acme/chat"),),
    )
    for text in (
        render_prediction(whole, LINKS),
        render_created(whole, LINKS),
        render_prediction(record(status), LINKS),
    ):
        members = json.loads(text)
        found = objects.Prediction.model_validate(members, strict=True)
        assert not found.model_extra and members.get("deployment", "acme/chat") == "acme/chat"
    assert json.loads(render_prediction(whole, LINKS))["deployment"] == "acme/chat"


def test_a_page_is_what_its_class_says() -> None:
    records = (record(Status.SUCCEEDED, output=("a",)), record(Status.STARTING))
    for token in ("", "abc"):
        page = json.loads(render_page(PredictionPage(records, token), LINKS, ListQuery()))
        objects.PredictionPage.model_validate(page, strict=True)
        assert page["next"] == (f"https://h.example/llm/v1/predictions?cursor={token}" if token else None)
        assert [found["output"] for found in page["results"]] == [None, None]


def test_a_version_id_is_the_weights_or_stays_with_the_name() -> None:
    assert version_id(MODEL) == "ab" * 32
    for unknown in ("", "AB" * 32, "ab"):
        unnamed = replace(MODEL, weights_sha256=unknown)
        assert version_id(unnamed) == version_id(replace(unnamed, engine="other"))
        assert len(version_id(unnamed)) == 64
        assert version_id(unnamed) != version_id(replace(unnamed, name="acme/other"))


def test_a_model_has_all_members_and_a_url_of_ours() -> None:
    members = json.loads(model_object(replace(MODEL, name="acme/a b"), BASE).model_dump_json())
    assert members["url"] == "https://h.example/llm/v1/models/acme/a%20b"
    assert members["latest_version"]["cog_version"] >= "0.3.9" and members["run_count"] == 0
    objects.Model.model_validate(members, strict=True)


def test_the_document_refers_to_nothing_that_is_missing() -> None:
    document = openapi_document(ENDPOINTS, BASE)
    text = json.dumps(document)
    named = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert named == document["components"]["schemas"].keys()
    assert [server["url"] for server in document["servers"]] == [
        "https://h.example/llm/v1",
        "https://h.example/llm",
    ]
    operations = [op["operationId"] for path in document["paths"].values() for op in path.values()]
    assert len(set(operations)) == len(operations) == len(ENDPOINTS)
