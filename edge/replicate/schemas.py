"""Owns the body of a create: which fields there are, their types and bounds, and their faults.

The fields are those that Replicate's public language models take; Replicate itself documents them
per model. Choices, where those models differ or say nothing:

- unknown fields are dropped (SDKs add some), known ones are strict: no text for a number, no true
  for 1, no 512.0 for 512; null means the default;
- `stop` is one string or a list of strings; `stop_sequences` may also be one string that holds
  several, separated by commas, as on Replicate. Both together count as one list;
- `max_new_tokens` is another name of `max_tokens`, and both together must agree;
- `messages` and a non-empty `prompt` exclude each other;
- `json_schema` is an object, or its JSON text;
- webhooks are refused, not ignored: a caller who waits for one would wait for ever.

A fault is told in the shape of Replicate's 422: see `errors.invalid_input`.
"""

from typing import Annotated, Final, Literal

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from edge.protocol.problems import InvalidField

MAX_STOP_STRINGS: Final = 16
MAX_STOP_BYTES: Final = 256
MAX_MESSAGES: Final = 1024
MAX_JSON_SCHEMA_BYTES: Final = 16 * 1024
MAX_INT64: Final = 2**63 - 1
DEFAULT_MAX_TOKENS: Final = 512


class InvalidInput(Exception):
    """The body cannot be taken; one entry a fault."""

    def __init__(self, *faults: InvalidField) -> None:
        super().__init__("; ".join(f"{fault.field}: {fault.description}" for fault in faults))
        self.faults = faults


def _stop_list(value: object) -> object:
    if isinstance(value, str):
        return [value]
    return value


def _comma_list(value: object) -> object:
    if isinstance(value, str):
        return [part for part in value.split(",") if part]
    return value


def _check_stop(value: str) -> str:
    if not 0 < len(value.encode()) <= MAX_STOP_BYTES:
        raise PydanticCustomError("string_length", "Must have 1 to {limit} bytes", {"limit": MAX_STOP_BYTES})
    return value


def _schema_text(value: object) -> object:
    """Turn an object into its text, and text into a checked one."""
    if isinstance(value, dict):
        text = orjson.dumps(value).decode()
    elif isinstance(value, str):
        text = value
        try:
            parsed = orjson.loads(value)
        except orjson.JSONDecodeError:
            parsed = None
        if not isinstance(parsed, dict):
            raise PydanticCustomError("invalid_json", "Must be a JSON object or the text of one")
    else:
        raise PydanticCustomError("invalid_type", "Must be a JSON object or the text of one")
    if len(text.encode()) > MAX_JSON_SCHEMA_BYTES:
        limit = {"limit": MAX_JSON_SCHEMA_BYTES}
        raise PydanticCustomError("string_lte", "Must have {limit} bytes at most", limit)
    return text


_StopString = Annotated[str, AfterValidator(_check_stop)]
_StopList = Annotated[list[_StopString], Field(max_length=MAX_STOP_STRINGS)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, use_attribute_docstrings=True)


class Message(_Strict):
    """One turn of `messages`."""

    role: Literal["system", "user", "assistant", "tool", "developer"]
    content: str


class PredictionInput(_Strict):
    """The `input` of a create."""

    prompt: str | None = None
    """Raw text, or one user turn where the model has a chat template."""

    system_prompt: str | None = None
    """The system turn before it."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    """A whole conversation instead of `prompt`."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Output tokens at most; default 512, cut to what the context has room for."""

    max_new_tokens: Annotated[int, Field(ge=1)] | None = None
    """Another name of `max_tokens`."""

    min_tokens: Annotated[int, Field(ge=0)] | None = None
    """Output tokens at least; default 0."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """0 (greedy) to 2; default 1."""

    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """0 (most likely token only) to 1 (off); default 1."""

    top_k: Annotated[int, Field(ge=-1)] | None = None
    """0 and -1 are off; default 0."""

    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """0 (off) to 1; default 0."""

    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """-2 to 2; default 0."""

    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """-2 to 2; default 0."""

    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    """Above 0 to 10; default 1 (off)."""

    stop: Annotated[_StopList, BeforeValidator(_stop_list, json_schema_input_type=str | _StopList)] | None = (
        None
    )
    """String or list of strings that end the text; not part of the output."""

    stop_sequences: (
        Annotated[_StopList, BeforeValidator(_comma_list, json_schema_input_type=str | _StopList)] | None
    ) = None
    """The same; a string is split at commas."""

    seed: Annotated[int, Field(ge=-1, le=MAX_INT64)] | None = None
    """-1 and null draw a fresh one."""

    json_schema: (
        Annotated[str, BeforeValidator(_schema_text, json_schema_input_type=str | dict[str, JsonValue])]
        | None
    ) = None
    """The output is JSON valid under it."""

    def given(self) -> dict[str, JsonValue]:
        """Return the fields that the caller set to something, by name, in the order of this class."""
        return self.model_dump(exclude_none=True, exclude_unset=True)


class CreateBody(_Strict):
    """The body of a create."""

    version: str | None = None
    """What to run: version id, `owner/name`, or `owner/name:version`."""

    model: str | None = None
    """`owner/name`; an alternative to `version`."""

    id: str | None = None
    """The prediction's id; what a PUT has in its path. Without meaning elsewhere."""

    input: PredictionInput


def read_create(body: JsonValue) -> CreateBody:
    """Return the body of a create, checked. Raises InvalidInput."""
    if not isinstance(body, dict):
        raise InvalidInput(InvalidField("invalid_type", "(root)", "Must be an object"))
    for name in ("webhook", "webhook_completed"):
        if body.get(name) is not None:
            text = f"{name} is not supported yet; poll or stream"
            raise InvalidInput(InvalidField("unsupported", name, text))
    try:
        create = CreateBody.model_validate(body)
    except ValidationError as error:
        raise InvalidInput(*(_fault(detail) for detail in error.errors(include_url=False))) from None
    faults = _combination_faults(create.input)
    if faults:
        raise InvalidInput(*faults)
    return create


def _combination_faults(given: PredictionInput) -> list[InvalidField]:
    faults = []
    if given.messages is None and given.prompt is None:
        faults.append(InvalidField("required", "input", "prompt is required"))
    elif given.messages is None and not given.prompt:
        faults.append(InvalidField("string_gte", "input.prompt", "Must not be empty"))
    elif given.messages is not None and given.prompt:
        faults.append(InvalidField("conflict", "input.messages", "Give either messages or prompt"))
    if given.messages is not None and not any(message.content for message in given.messages):
        faults.append(InvalidField("required", "input.messages", "At least one message needs content"))
    if None not in (given.max_tokens, given.max_new_tokens) and given.max_tokens != given.max_new_tokens:
        text = "Differs from max_tokens, which is the same thing"
        faults.append(InvalidField("conflict", "input.max_new_tokens", text))
    if len((given.stop or []) + (given.stop_sequences or [])) > MAX_STOP_STRINGS:
        text = f"Together with stop there may be {MAX_STOP_STRINGS} items at most"
        faults.append(InvalidField("array_max_items", "input.stop_sequences", text))
    return faults


_TYPES: Final = {
    "missing": "required",
    "less_than_equal": "number_lte",
    "greater_than_equal": "number_gte",
    "greater_than": "number_gt",
    "too_long": "array_max_items",
    "too_short": "array_min_items",
    "literal_error": "enum",
    "model_type": "invalid_type",
}
_TEXTS: Final = {
    "int_type": "Must be an integer",
    "float_type": "Must be a number",
    "string_type": "Must be a string",
    "list_type": "Must be an array",
    "model_type": "Must be an object",
    "model_attributes_type": "Must be an object",
    "less_than_equal": "Must be less than or equal to {le:g}",
    "greater_than_equal": "Must be greater than or equal to {ge:g}",
    "greater_than": "Must be greater than {gt:g}",
    "too_long": "Must have {max_length} items at most",
    "too_short": "Must have {min_length} items at least",
    "literal_error": "Must be one of {expected}",
}


def _fault(detail: ErrorDetails) -> InvalidField:
    """Return pydantic's account of a fault as ours; it never repeats the caller's value."""
    kind = detail["type"]
    *parents, last = detail["loc"]
    if kind == "missing":
        where = ".".join(map(str, parents)) or "(root)"
        return InvalidField("required", where, f"{last} is required")
    path = ".".join(map(str, detail["loc"]))
    text = _TEXTS.get(kind, detail["msg"]).format(**detail.get("ctx", {}))
    return InvalidField(_TYPES.get(kind, "invalid_type" if kind.endswith("_type") else kind), path, text)
