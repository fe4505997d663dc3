"""Owns what the headers and paths of Replicate's API mean: deadlines, versions, resume positions."""

import base64
import re
import secrets
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from starlette.requests import Request

from edge.http.middleware import caller_of
from edge.http.problem_responses import ProblemError
from edge.protocol.durations import DurationError, parse_cancel_after
from edge.protocol.forwarded import TrustedProxies
from edge.protocol.problems import InvalidField, Problem
from edge.protocol.public_url import InvalidHost, PublicBase, RequestOrigin, public_base
from edge.replicate.errors import invalid_version
from edge.replicate.schemas import CreateBody, InvalidInput
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.metadata import Caller
from edge.upstream.port import UpstreamModels
from edge.upstream.records import ModelRecord
from protos.replicate_object import HIDDEN_VERSION

_PREDICTION_ID: Final = re.compile(r"[a-z0-9]{26}")
_VERSION_ID: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class PublicUrls:
    """Where the URLs in answers come from."""

    configured: PublicBase | None = None
    """The public base of the settings; None: ask the request."""

    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    """Whose forwarding headers are believed."""

    def base(self, request: Request) -> PublicBase:
        """Return the base for the answer to `request`. Raises ProblemError 400 for a bad Host."""
        peer = request.client.host if request.client is not None else None
        origin = RequestOrigin(request.url.scheme, request.scope["headers"], peer)
        try:
            return public_base(origin, self.configured, self.proxies)
        except InvalidHost:
            raise ProblemError(Problem("Bad request", 400, "The Host header is not valid.")) from None


def prediction_id(request: Request) -> str:
    """Return the id in the path. Raises UpstreamError for one that cannot exist."""
    text = request.path_params["prediction_id"]
    if not _PREDICTION_ID.fullmatch(text):
        raise UpstreamError(Reason.PREDICTION_NOT_FOUND, "No such prediction.")
    return str(text)


def new_prediction_id() -> str:
    """Return an id for a new prediction: 26 lower-case base32 characters of 128 random bits."""
    return base64.b32encode(secrets.token_bytes(16)).decode("ascii").rstrip("=").lower()


def cancel_after(request: Request) -> timedelta | None:
    """Return what the `Cancel-After` header asks, if there is one. Raises InvalidInput."""
    values = request.headers.getlist("cancel-after")
    if not values:
        return None
    if len(values) > 1:
        raise InvalidInput(InvalidField("invalid", "Cancel-After", "Cancel-After must be given once."))
    try:
        return parse_cancel_after(values[0].strip(" \t"))
    except DurationError as error:
        raise InvalidInput(InvalidField("invalid", "Cancel-After", str(error))) from None


def last_event_id(request: Request) -> str | None:
    """Return where a stream's reader wants to go on; the header counts before the query."""
    return request.headers.get("last-event-id") or request.query_params.get("last_event_id") or None


async def requested_model(request: Request, body: CreateBody, models: UpstreamModels) -> ModelRecord:
    """Return the model that a create names, in its path or its body.

    Raises UpstreamError MODEL_NOT_FOUND for a name in the path, InvalidInput when nothing is named,
    ProblemError 422 for a version that is not served.
    """
    caller = caller_of(request)
    params = request.path_params
    if "owner" in params:
        return await models.get(f"{params['owner']}/{params['name']}", caller=caller)
    if body.version is None and body.model is None:
        raise InvalidInput(InvalidField("required", "(root)", "version is required"))
    name, _, version = (body.version or "").partition(":")
    if "/" not in name:
        name, version = body.model or "", body.version or ""
        if body.version == "":
            raise ProblemError(invalid_version())
    candidates = await _named(name, models, caller) if name else await models.list(caller=caller)
    matching = [model for model in candidates if _is_version_of(model, version)]
    if len(matching) != 1:
        raise ProblemError(invalid_version())
    return matching[0]


async def _named(name: str, models: UpstreamModels, caller: Caller) -> tuple[ModelRecord, ...]:
    try:
        return (await models.get(name, caller=caller),)
    except UpstreamError as error:
        if error.reason is not Reason.MODEL_NOT_FOUND:
            raise
        return ()


def _is_version_of(model: ModelRecord, version: str) -> bool:
    """Return whether `version` is one of the model's names for what it serves now."""
    if version in ("", HIDDEN_VERSION):
        return True
    return bool(_VERSION_ID.fullmatch(version)) and version == model.weights_sha256
