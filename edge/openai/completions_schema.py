"""Owns the body of a completion, the older API: prompts as text or token ids, one or many.

Choices: `prompt` must be given; `max_tokens` defaults to 16, as OpenAI's does; `best_of` is taken when
it asks for nothing more than `n`; `echo` needs a prompt in text and no `logprobs`, since neither the
text of given token ids nor the probabilities of a prompt are known here.
"""

from typing import Annotated, Final

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from edge.openai.errors import RequestRefused
from edge.openai.fields import MAX_TOKEN_ID, Count, GenerationFields, ResponseFormat, read_body
from edge.upstream.records import Generation, TextInput, TokenInput

DEFAULT_MAX_TOKENS: Final = 16
MAX_PREDICTIONS: Final = 32
"""Most choices of one request: prompts × n."""

HARMLESS: Final[dict[str, tuple[object, ...]]] = {
    "suffix": ("",),
    "tools": ([],),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
}
NAMES: Final = {"json_schema": "response_format", "token_ids": "prompt"}

Prompt = TextInput | TokenInput


def _is_tokens(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _prompt(value: object) -> Prompt:
    if isinstance(value, str):
        if not value:
            raise PydanticCustomError("invalid_value", "{text}", {"text": "must not be empty"})
        return TextInput(value)
    if isinstance(value, list) and _is_tokens(value):
        if not all(0 <= item <= MAX_TOKEN_ID for item in value):
            raise PydanticCustomError("invalid_value", "{text}", {"text": "must hold token ids"})
        return TokenInput(tuple(value))
    text = "must be a string, a list of strings, a list of token ids, or a list of such lists"
    raise PydanticCustomError("invalid_value", "{text}", {"text": f"{text}, none of them empty"})


class CompletionBody(GenerationFields):
    """The body."""

    prompt: tuple[Prompt, ...]
    max_tokens: Count | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    """Alternatives beside each token's own probability."""

    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    response_format: ResponseFormat | None = None

    @field_validator("prompt", mode="plain")
    @classmethod
    def _prompts(cls, value: object) -> tuple[Prompt, ...]:
        if isinstance(value, list) and value and not _is_tokens(value):
            return tuple(_prompt(item) for item in value)
        return (_prompt(value),)

    def echoed(self, choice: int) -> str:
        """Return the text that stands before the output of a choice."""
        given = self.prompt[choice // self.choices]
        return given.text if self.echo and isinstance(given, TextInput) else ""


def read_completion(body: object) -> CompletionBody:
    """Return the body, checked. Raises RequestRefused."""
    given = read_body(CompletionBody, body, HARMLESS)
    if given.stream_options is not None and not given.stream:
        raise RequestRefused("'stream_options' is only allowed when 'stream' is true.", "stream_options")
    if given.best_of is not None and given.best_of != given.choices:
        text = "'best_of' must equal 'n': choosing the best of more is not supported."
        raise RequestRefused(text, "best_of", "unsupported_parameter")
    if given.echo and given.logprobs is not None:
        text = "'echo' cannot be combined with 'logprobs'."
        raise RequestRefused(text, "echo", "unsupported_parameter")
    if given.echo and any(isinstance(prompt, TokenInput) for prompt in given.prompt):
        raise RequestRefused("'echo' needs a prompt in text.", "echo", "unsupported_parameter")
    if len(given.prompt) * given.choices > MAX_PREDICTIONS:
        raise RequestRefused(f"prompts times 'n' may be {MAX_PREDICTIONS} at most.", "prompt")
    return given


def completion_generations(given: CompletionBody) -> tuple[Generation, ...]:
    """Return what to generate: choice `i` is sample `i % n` of prompt `i // n`. Raises RequestRefused."""
    limit = given.max_tokens or max(DEFAULT_MAX_TOKENS, given.min_tokens or 0)
    form = given.response_format
    return tuple(
        Generation(
            input=prompt,
            sampling=given.sampling(sample),
            stopping=given.stopping(limit, name="max_tokens"),
            json_schema=form.constraint("response_format") if form is not None else None,
            top_logprobs=given.logprobs,
            priority=given.priority or 0,
        )
        for prompt in given.prompt
        for sample in range(given.choices)
    )
