"""Replicate's prediction object: the one place that writes it, for answers and for webhooks.

The edge writes it when asked, the service when it calls a webhook, and both must be the same bytes.
What only the edge knows (URLs, what is echoed) comes as a context: JSON that the edge gives with a
webhook at creation and makes anew for each answer. `contract/replicate.md` §3 lists the members.

Written twice, as `edge.protocol` must not import this package (a test compares the two):
`split_piece` of `edge/protocol/chunks.py` and `format_timestamp` of `edge/protocol/timestamps.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import orjson
from pydantic import JsonValue

INPUT_LABEL: Final = "data.replicate.input"
"""Label with a JSON object: input field → its number, or null for one whose text stands in the request.
The service removes labels with this prefix together with the data."""
DEPLOYMENT_LABEL: Final = "deployment"
"""Label with the name of the deployment that the prediction was created on."""
HIDDEN_VERSION: Final = "hidden"
"""`version`, as for Replicate's official models; wherever a version is given it means the model's own."""
ID: Final = "{id}"
"""Stands for the prediction's id in the URLs of a context, where it is not known yet."""
SUCCEEDED: Final = "succeeded"

_OTHER_API: Final = '{"prompt":null,"system_prompt":null}'
"""Label of a prediction made through another API: its text alone is shown."""
_LINK: Final = re.compile(r"(?:https?|data):", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class InputTexts:
    """The texts of a request."""

    prompt: str | None = None
    messages: tuple[tuple[str, str], ...] | None = None
    """Role and content of each turn."""
    stop: tuple[str, ...] = ()
    json_schema: str | None = None


@dataclass(frozen=True, slots=True)
class PredictionFacts:
    """A prediction, free of both sides' types."""

    id: str
    model: str
    status: str
    created_at: datetime
    texts: InputTexts | None
    """None when there is no request (any more)."""
    output: tuple[str, ...] = ()
    """The text of each output entry."""
    logs: str = ""
    error: str = ""
    started_at: datetime | None = None
    first_output_at: datetime | None = None
    completed_at: datetime | None = None
    deadline: datetime | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    data_removed: bool = False


def encode(members: Mapping[str, JsonValue]) -> bytes:
    """Return the object as it is sent."""
    return orjson.dumps(members)


def read_context(text: str) -> dict[str, JsonValue]:
    """Return a context; an empty one for anything that is none or could not be written. Never raises."""
    try:
        context = orjson.loads(text)
        orjson.dumps([[context]])  # reads 1024 levels and writes 254: as deep as it stands in the object
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return {}
    return context if isinstance(context, dict) else {}


def prediction_object(facts: PredictionFacts, context: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the members in their order; those of `context` replace and follow ours."""
    members: dict[str, JsonValue] = {
        "id": facts.id,
        "model": facts.model,
        "version": HIDDEN_VERSION,
        "input": echo_input(None if facts.data_removed else facts.texts, facts.labels),
        "logs": "" if facts.data_removed else facts.logs,
        "output": _output(facts),
        "data_removed": facts.data_removed,
        "error": facts.error or None,
        "status": facts.status,
        "source": "api",
        "created_at": format_timestamp(facts.created_at),
        "started_at": _timestamp(facts.started_at),
        "completed_at": _timestamp(facts.completed_at),
        "metrics": _metrics(facts),
        "urls": {},
    }
    if facts.deadline is not None:
        members["deadline"] = format_timestamp(facts.deadline)
    if deployment := dict(facts.labels).get(DEPLOYMENT_LABEL):
        members["deployment"] = deployment
    members |= context
    members["urls"] = _urls(members["urls"], facts.id)
    return members


def echo_input(texts: InputTexts | None, labels: tuple[tuple[str, str], ...]) -> dict[str, JsonValue]:
    """Return the `input` of a prediction, also of one that was not made by this API; never raises.

    Empty for None: the request has been removed.
    """
    if texts is None:
        return {}
    kept = read_context(dict(labels).get(INPUT_LABEL, _OTHER_API))
    named = _named_texts(texts, names=frozenset(kept))
    echoed = {name: named.get(name) if value is None else value for name, value in kept.items()}
    return {name: value for name, value in echoed.items() if value is not None}


def split_piece(text: str) -> tuple[str, ...]:
    """Return `text` as pieces none of which looks like a link: see `edge/protocol/chunks.py`."""
    if not text:
        return ()
    return (text[0], text[1:]) if _LINK.match(text) else (text,)


def format_timestamp(moment: datetime) -> str:
    """Return an aware moment as RFC 3339 in UTC, with six digits and `Z`."""
    in_utc = moment.astimezone(UTC).replace(tzinfo=None)
    return f"{in_utc.isoformat(timespec='microseconds')}Z"


def _named_texts(given: InputTexts, *, names: frozenset[str]) -> dict[str, JsonValue]:
    """Return the text-bearing fields, as the caller of `names` gave them."""
    texts: dict[str, JsonValue] = {"json_schema": given.json_schema}
    stop: list[JsonValue] = [*given.stop]
    texts["stop"] = texts["stop_sequences"] = stop
    if {"stop", "stop_sequences"} <= names:
        texts["stop_sequences"] = None  # one list by then; shown once
    if given.prompt is not None:
        texts["prompt"] = given.prompt
    if given.messages is not None:
        turns = list(given.messages)
        if "system_prompt" in names and turns and turns[0][0] == "system":
            texts["system_prompt"] = turns.pop(0)[1]
        if "prompt" in names and "messages" not in names and turns:
            texts["prompt"] = turns[-1][1]
        texts["messages"] = [{"role": role, "content": content} for role, content in turns]
    return texts


def _output(facts: PredictionFacts) -> JsonValue:
    """Return the pieces; null until there are some, or for good when there never were."""
    if facts.data_removed:
        return None
    pieces: list[JsonValue] = [piece for text in facts.output for piece in split_piece(text)]
    return pieces if pieces or facts.status == SUCCEEDED else None


def _metrics(facts: PredictionFacts) -> dict[str, JsonValue]:
    """Return times in seconds and token counts; nothing until the end.

    `tokens_per_second` is output tokens over `predict_time`; `time_to_first_token` counts from the
    creation, queueing included.
    """
    if facts.completed_at is None:
        return {}
    predict_s = _seconds(facts.started_at or facts.completed_at, facts.completed_at)
    metrics: dict[str, JsonValue] = {
        "predict_time": predict_s,
        "total_time": _seconds(facts.created_at, facts.completed_at),
        "input_token_count": facts.input_tokens,
        "output_token_count": facts.output_tokens,
    }
    if predict_s > 0 and facts.output_tokens:
        metrics["tokens_per_second"] = round(facts.output_tokens / predict_s, 3)
    if facts.first_output_at is not None:
        metrics["time_to_first_token"] = _seconds(facts.created_at, facts.first_output_at)
    return metrics


def _urls(urls: JsonValue, prediction_id: str) -> dict[str, JsonValue]:
    """Return `urls`: strings only, as one of the official clients refuses anything else."""
    if not isinstance(urls, dict):
        return {}
    return {name: url.replace(ID, prediction_id) for name, url in urls.items() if isinstance(url, str)}


def _seconds(begin: datetime, end: datetime) -> float:
    return max(0.0, round((end - begin).total_seconds(), 6))


def _timestamp(moment: datetime | None) -> str | None:
    return None if moment is None else format_timestamp(moment)
