"""Owns the fields that the endpoints of this API share: types, bounds, refusals, and what they mean.

Choices: unknown fields are ignored, as SDKs add some; null means the default; types are strict. What
we cannot do is refused by name unless its value asks for nothing. A fault is told for the first field
only, as OpenAI does.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from edge.openai.errors import RequestRefused
from edge.upstream.records import Sampling, Stopping

MAX_CHOICES: Final = 8
"""Largest `n`."""

MAX_STOP_STRINGS: Final = 16
"""OpenAI itself takes 4."""

MAX_STOP_BYTES: Final = 256
MAX_JSON_SCHEMA_BYTES: Final = 16 * 1024
MAX_INT64: Final = 2**63 - 1
MAX_TOKEN_ID: Final = 2**31 - 1
ANY_OBJECT: Final = '{"type":"object"}'
"""The schema of `json_object`."""


class Strict(BaseModel):
    """What all bodies are: immutable, strict, and blind to fields they do not know."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


_Body = TypeVar("_Body", bound=Strict)


def _bad(text: str) -> PydanticCustomError:
    return PydanticCustomError("invalid_value", "{text}", {"text": text})


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _stop_string(value: str) -> str:
    if not 0 < len(value.encode()) <= MAX_STOP_BYTES:
        raise _bad(f"each item must have 1 to {MAX_STOP_BYTES} bytes")
    return value


def _biases(value: object) -> object:
    if not isinstance(value, dict):
        return value
    for key in value:
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and int(key) <= MAX_TOKEN_ID):
            raise _bad("keys must be token ids")
    return value


StopList = Annotated[
    list[Annotated[str, AfterValidator(_stop_string)]],
    Field(max_length=MAX_STOP_STRINGS),
    BeforeValidator(_listed),
]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
Count = Annotated[int, Field(ge=1)]


class StreamOptions(Strict):
    """`stream_options`; what else stands in it is ignored."""

    include_usage: bool | None = None


class GenerationFields(Strict):
    """Fields of chat completions and completions alike."""

    model: str
    """A served model: `owner/name`, or `name` alone where that is unique."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    """Choices a prompt, each a prediction of its own; default 1."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    stop: StopList | None = None
    seed: Annotated[int, Field(ge=-1, le=MAX_INT64)] | None = None
    """-1 and null draw a fresh one."""

    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: (
        Annotated[
            dict[str, Annotated[float, Field(ge=-100, le=100)]],
            Field(max_length=300),
            BeforeValidator(_biases),
        ]
        | None
    ) = None
    """Token id → bias."""

    top_k: Annotated[int, Field(ge=-1)] | None = None
    """0 and -1 are off."""

    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    priority: Annotated[int, Field(ge=-100, le=100)] | None = None
    """Higher is served first."""

    @property
    def choices(self) -> int:
        """How many choices a prompt."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def sampling(self, choice: int = 0) -> Sampling:
        """Return how to sample the `choice`-th of `n`: a seed counts up, lest all be the same."""
        seed = None if self.seed in (None, -1) else self.seed
        if seed is not None and choice:
            seed = (seed + choice) & MAX_INT64
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=None if self.top_k == -1 else self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            seed=seed,
            logit_bias=tuple(sorted((int(key), bias) for key, bias in (self.logit_bias or {}).items())),
        )

    def stopping(self, max_tokens: int, *, name: str) -> Stopping:
        """Return when to stop. Raises RequestRefused; `name` is what the limit is called."""
        if (self.min_tokens or 0) > max_tokens:
            raise RequestRefused(f"'min_tokens' must not be above '{name}' ({max_tokens}).", "min_tokens")
        return Stopping(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            stop=tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
        )


class _JsonSchemaFormat(Strict):
    name: str | None = None
    schema_: Annotated[dict[str, JsonValue] | None, Field(alias="schema")] = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(Strict):
    """`response_format` of chat, and `text.format` of responses, which is flat."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchemaFormat | None = None
    name: str | None = None
    schema_: Annotated[dict[str, JsonValue] | None, Field(alias="schema")] = None

    def constraint(self, param: str) -> str | None:
        """Return the JSON schema of the output as text, None for free text. Raises RequestRefused."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return ANY_OBJECT
        nested = self.json_schema.schema_ if self.json_schema is not None else None
        schema = self.schema_ if nested is None else nested
        if schema is None:
            raise RequestRefused(f"'{param}' needs a schema.", param, "missing_required_parameter")
        text = orjson.dumps(schema)
        if len(text) > MAX_JSON_SCHEMA_BYTES:
            raise RequestRefused(f"'{param}' may have {MAX_JSON_SCHEMA_BYTES} bytes at most.", param)
        return text.decode()


def read_body(kind: type[_Body], body: object, harmless: Mapping[str, tuple[object, ...]]) -> _Body:
    """Return `body`, checked. Raises RequestRefused.

    `harmless` names the fields that we know and cannot do, with the values that ask for nothing.
    """
    if not isinstance(body, dict):
        raise RequestRefused("The body must be a JSON object.", code="invalid_type")
    for name, values in harmless.items():
        given = body.get(name)
        if given is not None and not any(given is value or given == value for value in values):
            raise RequestRefused(f"'{name}' is not supported here.", name, "unsupported_parameter")
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise _fault(error.errors(include_url=False)[0]) from None


_TEXTS: Final = {
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be a boolean",
    "string_type": "must be a string",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "less_than_equal": "must be at most {le:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be above {gt:g}",
    "too_long": "must have {max_length} items at most",
    "too_short": "must have {min_length} items at least",
    "literal_error": "must be one of {expected}",
    "invalid_value": "{text}",
    "unsupported": "{text}",
    "finite_number": "must be a finite number",
}


def _fault(detail: ErrorDetails) -> RequestRefused:
    """Return pydantic's account of a fault as ours; it never repeats the caller's value."""
    kind = detail["type"]
    param = path_of(detail["loc"])
    if kind == "missing":
        return RequestRefused(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
    text = _TEXTS.get(kind, "is not valid").format(**detail.get("ctx", {}))
    code = "invalid_type" if kind.endswith("_type") else "invalid_value"
    if kind == "unsupported":
        code = "unsupported_value"
    return RequestRefused(f"Invalid '{param}': {text}.", param, code)


def path_of(loc: tuple[int | str, ...]) -> str:
    """Return a place in the body as OpenAI writes it: `messages.[0].content`."""
    return ".".join(f"[{part}]" if isinstance(part, int) else part.removesuffix("_") for part in loc)
