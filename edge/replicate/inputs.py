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
from protos import replicate_object
from protos.replicate_object import INPUT_LABEL, InputTexts

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
    texts = None if record.data_removed else input_texts(record)
    return replicate_object.echo_input(texts, record.labels)


def input_texts(record: PredictionRecord) -> InputTexts | None:
    """Return the texts of a prediction's request; None when there is no request (any more)."""
    generation = record.generation
    if generation is None:
        return None
    prompt: str | None = None
    messages: tuple[tuple[str, str], ...] | None = None
    match generation.input:
        case TextInput(text):
            prompt = text
        case ChatInput(turns):
            messages = tuple((turn.role, turn.content) for turn in turns)
        case _:
            pass
    return InputTexts(prompt, messages, generation.stopping.stop, generation.json_schema)
