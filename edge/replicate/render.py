"""Owns the prediction object of Replicate's API, as `contract` §3 lists it field for field.

`output` is a list of pieces of text that only grows; joined they are the text. `version` is always
`hidden`, as for Replicate's official models.
"""

from dataclasses import dataclass
from datetime import datetime

import orjson
from pydantic import JsonValue

from edge.protocol.chunks import split_piece
from edge.protocol.public_url import PublicBase
from edge.protocol.timestamps import format_timestamp
from edge.replicate.catalog import HIDDEN_VERSION
from edge.replicate.deployments import DEPLOYMENT_LABEL
from edge.replicate.inputs import echo_input
from edge.replicate.tokens import StreamTokens
from edge.upstream.events import Status
from edge.upstream.records import PredictionRecord


@dataclass(frozen=True, slots=True)
class Links:
    """Makes the absolute URLs of one answer."""

    base: PublicBase
    """Where the caller reaches us."""

    tokens: StreamTokens
    """What makes a stream's URL a credential."""

    def get(self, prediction_id: str) -> str:
        """Return the URL of the prediction itself."""
        return self.base.url(f"/v1/predictions/{prediction_id}")

    def all(self, prediction_id: str) -> dict[str, JsonValue]:
        """Return `urls`: strings only, all there."""
        return {
            "get": self.get(prediction_id),
            "cancel": self.base.url(f"/v1/predictions/{prediction_id}/cancel"),
            "web": self.base.url(f"/p/{prediction_id}"),
            "stream": self.base.url(f"/v1/streams/{self.tokens.issue(prediction_id)}"),
        }


def render_prediction(record: PredictionRecord, links: Links) -> bytes:
    """Return the prediction as it stands, as JSON."""
    return orjson.dumps(_members(record, links))


def render_created(record: PredictionRecord, links: Links) -> bytes:
    """Return the answer to a create: as it stands if it has ended, else as if nothing happened yet.

    The official clients take any status but `starting` as finished, and skip output that was there
    already. So one that runs must not be shown as running here.
    """
    members = _members(record, links)
    if not record.status.is_terminal:
        members |= {"status": Status.STARTING.value, "output": None, "started_at": None, "logs": ""}
    return orjson.dumps(members)


def render_listed(record: PredictionRecord, links: Links) -> dict[str, JsonValue]:
    """Return the prediction as a list shows it: without its output, which lists do not carry."""
    return _members(record, links) | {"output": None, "logs": ""}


def _members(record: PredictionRecord, links: Links) -> dict[str, JsonValue]:
    members: dict[str, JsonValue] = {
        "id": record.id,
        "model": record.model,
        "version": HIDDEN_VERSION,
        "input": echo_input(record),
        "logs": "" if record.data_removed else record.logs,
        "output": _output(record),
        "data_removed": record.data_removed,
        "error": record.error or None,
        "status": record.status.value,
        "source": "api",
        "created_at": format_timestamp(record.created_at),
        "started_at": _timestamp(record.started_at),
        "completed_at": _timestamp(record.completed_at),
        "metrics": _metrics(record),
        "urls": links.all(record.id),
    }
    if record.deadline is not None:
        members["deadline"] = format_timestamp(record.deadline)
    deployment = dict(record.labels).get(DEPLOYMENT_LABEL)
    if deployment:
        members["deployment"] = deployment
    return members


def _output(record: PredictionRecord) -> JsonValue:
    """Return the pieces; null until there are some, or for good when there never were."""
    if record.data_removed:
        return None
    pieces: list[JsonValue] = [piece for text in record.output for piece in split_piece(text)]
    return pieces if pieces or record.status is Status.SUCCEEDED else None


def _metrics(record: PredictionRecord) -> dict[str, JsonValue]:
    """Return times in seconds and token counts; nothing until the end.

    `tokens_per_second` is output tokens over `predict_time`; `time_to_first_token` counts from the
    creation, queueing included.
    """
    if record.completed_at is None:
        return {}
    predict_s = _seconds(record.started_at or record.completed_at, record.completed_at)
    metrics: dict[str, JsonValue] = {
        "predict_time": predict_s,
        "total_time": _seconds(record.created_at, record.completed_at),
        "input_token_count": record.usage.input_tokens,
        "output_token_count": record.usage.output_tokens,
    }
    if predict_s > 0 and record.usage.output_tokens:
        metrics["tokens_per_second"] = round(record.usage.output_tokens / predict_s, 3)
    if record.first_output_at is not None:
        metrics["time_to_first_token"] = _seconds(record.created_at, record.first_output_at)
    return metrics


def _seconds(begin: datetime, end: datetime) -> float:
    return max(0.0, round((end - begin).total_seconds(), 6))


def _timestamp(moment: datetime | None) -> str | None:
    return None if moment is None else format_timestamp(moment)
