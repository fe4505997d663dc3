"""Owns the edge's answers with a prediction: the shared object with the URLs of this edge.

The object itself is `protos.replicate_object`'s, so that the service's webhooks send the same bytes.
"""

from dataclasses import dataclass

import orjson
from pydantic import JsonValue

from edge.protocol.public_url import PublicBase
from edge.protocol.timestamps import format_timestamp
from edge.replicate.inputs import input_texts
from edge.replicate.tokens import StreamTokens
from edge.upstream.events import Status
from edge.upstream.records import PredictionRecord, Webhook, WebhookDelivery
from protos.replicate_object import PredictionFacts, encode, prediction_object


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
    return encode(_members(record, links))


def render_created(record: PredictionRecord, links: Links) -> bytes:
    """Return the answer to a create: as it stands if it has ended, else as if nothing happened yet.

    The official clients take any status but `starting` as finished, and skip output that was there
    already. So one that runs must not be shown as running here.
    """
    members = _members(record, links)
    if not record.status.is_terminal:
        members |= {"status": Status.STARTING.value, "output": None, "started_at": None, "logs": ""}
    return encode(members)


def webhook_context(prediction_id: str, webhook: Webhook, links: Links) -> str:
    """Return what the service needs beside the prediction to write a call's body as we would."""
    return orjson.dumps(_context(prediction_id, webhook, links)).decode()


def render_listed(record: PredictionRecord, links: Links) -> dict[str, JsonValue]:
    """Return the prediction as a list shows it: without its output, which lists do not carry."""
    return _members(record, links) | {"output": None, "logs": ""}


def _members(record: PredictionRecord, links: Links) -> dict[str, JsonValue]:
    facts = PredictionFacts(
        id=record.id,
        model=record.model,
        status=record.status.value,
        created_at=record.created_at,
        texts=input_texts(record),
        output=record.output,
        logs=record.logs,
        error=record.error,
        started_at=record.started_at,
        first_output_at=record.first_output_at,
        completed_at=record.completed_at,
        deadline=record.deadline,
        input_tokens=record.usage.input_tokens,
        output_tokens=record.usage.output_tokens,
        labels=record.labels,
        data_removed=record.data_removed,
    )
    return prediction_object(facts, _context(record.id, record.webhook, links))


def _context(prediction_id: str, webhook: Webhook | None, links: Links) -> dict[str, JsonValue]:
    """Return the members that the shared object cannot know; known when a prediction is created."""
    context: dict[str, JsonValue] = {"urls": links.all(prediction_id)}
    if webhook is not None:
        context["webhook"] = webhook.url
        if webhook.events:
            context["webhook_events_filter"] = [event.value for event in webhook.events]
    return context


def render_deliveries(calls: tuple[WebhookDelivery, ...]) -> bytes:
    """Return the calls of a prediction's webhook."""
    return orjson.dumps(
        {
            "deliveries": [
                {
                    "id": call.id,
                    "event": call.event.value,
                    "attempts": call.attempts,
                    "delivered": call.delivered,
                    "given_up": call.given_up,
                    "last_status": call.last_status or None,
                    "last_error": call.last_error or None,
                    "created_at": format_timestamp(call.created_at),
                    "attempted_at": format_timestamp(call.attempted_at) if call.attempted_at else None,
                    "next_at": format_timestamp(call.next_at) if call.next_at else None,
                }
                for call in calls
            ]
        }
    )
