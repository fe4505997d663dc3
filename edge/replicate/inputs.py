"""Owns the two ways of a Replicate `input`: to what the service generates from, and back for echoing.

The service keeps the request itself, so the echo is made from that: the label kept beside it names
the fields that were given and holds their numbers, never text. So removing a prediction's data
removes all of a caller's text, and a long prompt is not kept twice.
"""

from typing import Final

import orjson
from pydantic import JsonValue

from edge.protocol.problems import InvalidField
from edge.replicate.schemas import DEFAULT_MAX_TOKENS, InvalidInput, PredictionInput
from edge.upstream.records import (
    ChatInput,
    ChatMessage,
    Generation,
    ModelInput,
    PredictionRecord,
    Sampling,
    Stopping,
    TextInput,
)

INPUT_LABEL: Final = "data.replicate.input"
"""JSON object: field → its number, or null for a field whose text stands in the request. The service
removes labels with this prefix together with the data."""

_OTHER_API: Final = '{"prompt":null,"system_prompt":null}'
"""Label of a prediction made through another API: its text alone is shown."""

_TEXT_FIELDS: Final = frozenset(
    ("prompt", "system_prompt", "messages", "stop", "stop_sequences", "json_schema")
)


def to_generation(given: PredictionInput, *, chat_template: bool) -> Generation:
    """Return what to generate. Raises InvalidInput for what needs a chat template that is not there."""
    max_tokens = given.max_tokens or given.max_new_tokens or DEFAULT_MAX_TOKENS
    if (given.min_tokens or 0) > max_tokens:
        text = f"Must not be greater than max_tokens ({max_tokens})"
        raise InvalidInput(InvalidField("number_lte", "input.min_tokens", text))
    return Generation(
        input=_model_input(given, chat_template=chat_template),
        sampling=Sampling(
            temperature=given.temperature,
            top_p=given.top_p,
            top_k=None if given.top_k == -1 else given.top_k,
            min_p=given.min_p,
            repetition_penalty=given.repetition_penalty,
            frequency_penalty=given.frequency_penalty,
            presence_penalty=given.presence_penalty,
            seed=None if given.seed == -1 else given.seed,
        ),
        stopping=Stopping(
            max_tokens=max_tokens,
            min_tokens=given.min_tokens,
            stop=(*(given.stop or ()), *(given.stop_sequences or ())),
        ),
        json_schema=given.json_schema,
    )


def _model_input(given: PredictionInput, *, chat_template: bool) -> ModelInput:
    if not chat_template:
        for name, value in (("messages", given.messages), ("system_prompt", given.system_prompt)):
            if value:
                text = f"{name} needs a model with a chat template; give prompt alone"
                raise InvalidInput(InvalidField("unsupported", f"input.{name}", text))
        return TextInput(given.prompt or "")
    turns = [ChatMessage(message.role, message.content) for message in given.messages or ()]
    if given.messages is None:
        turns.append(ChatMessage("user", given.prompt or ""))
    if given.system_prompt:
        turns.insert(0, ChatMessage("system", given.system_prompt))
    return ChatInput(tuple(turns))


def input_label(given: PredictionInput) -> tuple[str, str]:
    """Return the label that `echo_input` needs to show `given` again."""
    kept = {name: None if name in _TEXT_FIELDS else value for name, value in given.given().items()}
    return INPUT_LABEL, orjson.dumps(kept).decode()


def echo_input(record: PredictionRecord) -> dict[str, JsonValue]:
    """Return the `input` of a prediction, also of one that was not made by this API; never raises."""
    if record.generation is None or record.data_removed:
        return {}
    label = dict(record.labels).get(INPUT_LABEL, _OTHER_API)
    try:
        kept = orjson.loads(label)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(kept, dict):
        return {}  # a label of this name that another client made
    texts = _texts(record.generation, names=frozenset(kept))
    echoed = {name: texts.get(name) if value is None else value for name, value in kept.items()}
    return {name: value for name, value in echoed.items() if value is not None}


def _texts(generation: Generation, *, names: frozenset[str]) -> dict[str, JsonValue]:
    """Return the text-bearing fields, as the caller of `names` gave them."""
    texts: dict[str, JsonValue] = {"json_schema": generation.json_schema}
    stop: list[JsonValue] = [*generation.stopping.stop]
    texts["stop"] = texts["stop_sequences"] = stop
    if {"stop", "stop_sequences"} <= names:
        texts["stop_sequences"] = None  # one list by then; shown once
    match generation.input:
        case TextInput(text):
            texts["prompt"] = text
        case ChatInput(messages):
            turns = list(messages)
            if "system_prompt" in names and turns and turns[0].role == "system":
                texts["system_prompt"] = turns.pop(0).content
            if "prompt" in names and "messages" not in names and turns:
                texts["prompt"] = turns[-1].content
            texts["messages"] = [{"role": turn.role, "content": turn.content} for turn in turns]
        case _:
            pass
    return texts
