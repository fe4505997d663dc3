"""The prediction object: which members, when null, and how they are written."""

import json
from datetime import timedelta

import pytest

from edge.protocol.public_url import parse_public_base
from edge.replicate.render import Links, render_created, render_prediction
from edge.replicate.tokens import StreamTokens
from edge.upstream.events import Status, Usage
from edge.upstream.records import PredictionRecord
from tests.support.records import EPOCH, PREDICTION_ID, record

LINKS = Links(parse_public_base("https://h.example/llm"), StreamTokens(b"0123456789abcdef"))
REQUIRED = (
    "id model version input output data_removed error status created_at urls started_at completed_at"
    " logs metrics source"
).split()
STARTED = EPOCH + timedelta(seconds=1)
ENDED = EPOCH + timedelta(seconds=3)


def rendered(prediction: PredictionRecord) -> dict[str, object]:
    members: dict[str, object] = json.loads(render_prediction(prediction, LINKS))
    return members


@pytest.mark.parametrize("status", list(Status))
def test_every_member_is_there_in_every_status(status: Status) -> None:
    members = rendered(record(status))
    assert sorted(members) == sorted(REQUIRED)
    assert (members["status"], members["version"], members["source"]) == (status.value, "hidden", "api")
    assert members["id"] == PREDICTION_ID and members["error"] is None and members["logs"] == ""


def test_urls_are_absolute_strings_under_the_public_base() -> None:
    urls = rendered(record(Status.STARTING))["urls"]
    assert isinstance(urls, dict)
    base = "https://h.example/llm"
    assert urls["get"] == f"{base}/v1/predictions/{PREDICTION_ID}"
    assert urls["cancel"] == f"{base}/v1/predictions/{PREDICTION_ID}/cancel"
    assert urls["web"] == f"{base}/p/{PREDICTION_ID}"
    assert urls["stream"].startswith(f"{base}/v1/streams/{PREDICTION_ID}")
    assert len(urls["stream"].rsplit("/", 1)[1]) == 52


def test_output_is_null_until_there_is_some_and_empty_for_a_success_without_any() -> None:
    assert rendered(record(Status.PROCESSING))["output"] is None
    assert rendered(record(Status.CANCELED))["output"] is None
    assert rendered(record(Status.SUCCEEDED))["output"] == []
    assert rendered(record(Status.PROCESSING, output=("", "a", " b")))["output"] == ["a", " b"]


def test_no_output_item_looks_like_a_link() -> None:
    members = rendered(record(Status.SUCCEEDED, output=("https://a.b", "data:x")))
    assert members["output"] == ["h", "ttps://a.b", "d", "ata:x"]


def test_a_create_that_runs_is_shown_as_starting_without_output() -> None:
    running = record(Status.PROCESSING, output=("a",), started_at=STARTED, logs="l")
    members = json.loads(render_created(running, LINKS))
    assert (members["status"], members["output"], members["started_at"]) == ("starting", None, None)
    ended = record(Status.SUCCEEDED, output=("a",), started_at=STARTED, completed_at=ENDED)
    assert render_created(ended, LINKS) == render_prediction(ended, LINKS)


def test_metrics_come_with_the_end() -> None:
    assert rendered(record(Status.PROCESSING, started_at=STARTED))["metrics"] == {}
    ended = record(
        Status.SUCCEEDED,
        started_at=STARTED,
        first_output_at=STARTED + timedelta(milliseconds=250),
        completed_at=ENDED,
        usage=Usage(7, 0, 5),
    )
    assert rendered(ended)["metrics"] == {
        "predict_time": 2.0,
        "total_time": 3.0,
        "input_token_count": 7,
        "output_token_count": 5,
        "tokens_per_second": 2.5,
        "time_to_first_token": 1.25,
    }


def test_a_cancel_in_the_queue_has_metrics_too() -> None:
    members = rendered(record(Status.CANCELED, completed_at=ENDED))
    metrics = members["metrics"]
    assert isinstance(metrics, dict)
    assert (metrics["predict_time"], metrics["total_time"], members["started_at"]) == (0.0, 3.0, None)


def test_times_are_utc_with_six_digits() -> None:
    members = rendered(record(Status.SUCCEEDED, completed_at=ENDED, deadline=ENDED))
    assert members["created_at"] == "2026-11-30T18:47:08.234000Z"
    assert members["completed_at"] == members["deadline"] == "2026-11-30T18:47:11.234000Z"


def test_removed_data_leaves_nothing_of_the_caller() -> None:
    removed = record(
        Status.SUCCEEDED, generation=None, data_removed=True, completed_at=ENDED, logs="l",
        labels=(("data.replicate.input", '{"prompt":null,"seed":4}'),),
    )  # fmt: skip
    members = rendered(removed)
    assert (members["input"], members["output"], members["logs"]) == ({}, None, "")
    assert members["data_removed"] is True


@pytest.mark.parametrize("label", ["", "nonsense", "{", "5", "[]"])
def test_a_spoiled_label_spoils_nothing_else(label: str) -> None:
    assert rendered(record(Status.STARTING, labels=(("data.replicate.input", label),)))["input"] == {}


def test_a_prediction_of_another_api_shows_its_prompt() -> None:
    assert rendered(record(Status.STARTING))["input"] == {"prompt": "x"}
