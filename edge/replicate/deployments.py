"""Owns deployments: a model under a name of its own, with default inputs and limits.

They come from the settings and are checked with them, so a deployment that exists is valid. A
deployment's defaults fill what a caller left out or gave as null; what a caller gave counts. What
is over a limit is refused with 422, not cut; without a limit's field the limit is its default.
"""

from collections.abc import Mapping
from typing import Annotated, Final

import orjson
from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from edge.protocol.problems import InvalidField
from edge.replicate.schemas import DEFAULT_MAX_TOKENS, InvalidInput, PredictionInput

DEPLOYMENT_LABEL: Final = "deployment"
"""The prediction's label that names its deployment."""

_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}/[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
_ALIASES: Final = {"max_tokens": "max_new_tokens", "max_new_tokens": "max_tokens"}
_PROMPTS: Final = {"prompt": "messages", "messages": "prompt"}
"""Of each pair a caller's one replaces a default's other."""


class DeploymentInput(PredictionInput):
    """Default inputs; a name that is no input is a mistake."""

    model_config = ConfigDict(extra="forbid")


class Limits(BaseModel):
    """What a caller may ask for at most."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Output tokens."""

    prompt_bytes: Annotated[int, Field(ge=1)] | None = None
    """Bytes in UTF-8 of all text that goes in."""


class Deployment(BaseModel):
    """One deployment."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    model: str
    """A served model's `owner/name`."""

    input: DeploymentInput = DeploymentInput()
    limits: Limits = Limits()

    def fill(self, body: JsonValue) -> JsonValue:
        """Return a create's body with the defaults in it; one that is malformed is left to its check."""
        if not isinstance(body, dict) or not isinstance(body.get("input"), dict):
            return body
        raw = body["input"]
        assert isinstance(raw, dict)
        given = {name: value for name, value in raw.items() if value is not None}
        defaults = self.input.given()
        for name in given:
            defaults.pop(_ALIASES.get(name, ""), None)
            if given[name]:
                defaults.pop(_PROMPTS.get(name, ""), None)
        merged = defaults | given
        if self.limits.max_tokens is not None and not merged.keys() & _ALIASES.keys():
            merged["max_tokens"] = min(self.limits.max_tokens, DEFAULT_MAX_TOKENS)
        return {**body, "input": merged}

    def check(self, given: PredictionInput) -> None:
        """Raise InvalidInput for what is over a limit."""
        faults = []
        most = self.limits.max_tokens
        for name in _ALIASES:
            value = getattr(given, name)
            if most is not None and value is not None and value > most:
                text = f"Must be less than or equal to {most} on this deployment"
                faults.append(InvalidField("number_lte", f"input.{name}", text))
        room = self.limits.prompt_bytes
        if room is not None and _text_bytes(given) > room:
            text = f"All text together may have {room} bytes at most on this deployment"
            faults.append(InvalidField("string_lte", "input", text))
        if faults:
            raise InvalidInput(*faults)


Deployments = Mapping[Annotated[str, Field(pattern=_NAME)], Deployment]
"""By name, `owner/name`."""

_ADAPTER: Final[TypeAdapter[Deployments]] = TypeAdapter(Deployments)


def parse_deployments(text: str | bytes) -> Deployments:
    """Return the deployments that a JSON text names. Raises ValueError, fit for who wrote it."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"no valid JSON at line {error.lineno}, column {error.colno}") from None
    try:
        return _ADAPTER.validate_python(value)
    except ValidationError as error:
        faults = (
            f"{'.'.join(map(str, fault['loc'])) or 'all of it'}: {fault['msg']}" for fault in error.errors()
        )
        raise ValueError("; ".join(faults)) from None


def deployment_label(name: str) -> tuple[tuple[str, str], ...]:
    """Return the labels of a prediction on the deployment `name`; none without one."""
    return ((DEPLOYMENT_LABEL, name),) if name else ()


def _text_bytes(given: PredictionInput) -> int:
    texts = [given.prompt or "", given.system_prompt or ""]
    texts += [message.content for message in given.messages or ()]
    return sum(len(text.encode()) for text in texts)
