"""Owns what the headers and paths of Replicate's API mean: deadlines, versions, resume positions."""

import hashlib
import re
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
from edge.replicate.catalog import is_version_of
from edge.replicate.errors import invalid_version
from edge.replicate.schemas import CreateBody, InvalidInput
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.metadata import Caller
from edge.upstream.port import UpstreamModels
from edge.upstream.records import ModelRecord

PREDICTION_ID: Final = re.compile(r"[a-z0-9-]{1,64}")
"""Ids of the service's, 26 characters, and those that callers choose (Cog's PUT)."""

MAX_KEY_CHARS: Final = 255
"""Longest `Idempotency-Key`; Stripe's limit."""

_NAME_PART: Final = re.compile(r"[!-.0-~]{1,256}")
"""Printable ASCII without a slash; what is served under such a name is the service's to say."""


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
        root_path = request.scope.get("root_path", "")
        origin = RequestOrigin(request.scope["scheme"], request.scope["headers"], peer, root_path)
        try:
            return public_base(origin, self.configured, self.proxies)
        except InvalidHost:
            raise ProblemError(Problem("Bad request", 400, "The Host header is not valid.")) from None


def prediction_id(request: Request) -> str:
    """Return the id in the path. Raises UpstreamError for one that cannot exist."""
    text = request.path_params["prediction_id"]
    if not PREDICTION_ID.fullmatch(text):
        raise UpstreamError(Reason.PREDICTION_NOT_FOUND)
    return str(text)


def chosen_id(request: Request, body: CreateBody) -> str:
    """Return the id that a create chooses in its path; empty for one that chooses none.

    Raises InvalidInput for one that cannot be, or that the body contradicts.
    """
    text = request.path_params.get("prediction_id")
    if text is None:
        return ""
    if not PREDICTION_ID.fullmatch(text):
        fault = InvalidField("invalid", "prediction_id", "Must be 1 to 64 of a-z, 0-9 and hyphens")
        raise InvalidInput(fault)
    if body.id not in (None, text):
        raise InvalidInput(InvalidField("conflict", "id", "Differs from the id in the path"))
    return str(text)


def request_id(request: Request) -> str:
    """Return what names the create for the service, after `Idempotency-Key`; empty for none.

    The key is hashed: the service takes less text than callers send, and has other callers, whose
    request ids cannot meet these. Raises InvalidInput.
    """
    values = request.headers.getlist("idempotency-key")
    if not values:
        return ""
    key = values[0].strip(" \t")
    if len(values) > 1 or not 0 < len(key) <= MAX_KEY_CHARS or not (key.isascii() and key.isprintable()):
        text = f"Must be given once, as 1 to {MAX_KEY_CHARS} printable ASCII characters"
        raise InvalidInput(InvalidField("invalid", "Idempotency-Key", text))
    return f"idempotency-key:{hashlib.sha256(key.encode()).hexdigest()}"


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


def name_in_path(request: Request) -> str:
    """Return `owner/name` of the path. Raises UpstreamError MODEL_NOT_FOUND for one that cannot exist."""
    parts = (request.path_params["owner"], request.path_params["name"])
    if not all(_NAME_PART.fullmatch(part) for part in parts):
        raise UpstreamError(Reason.MODEL_NOT_FOUND, "No such model.")
    return "/".join(parts)


async def requested_model(request: Request, body: CreateBody, models: UpstreamModels) -> ModelRecord:
    """Return the model that a create names, in its path or its body.

    Raises UpstreamError MODEL_NOT_FOUND for a name in the path, InvalidInput when nothing is named,
    ProblemError 422 for a version that is not served.
    """
    caller = caller_of(request)
    if "owner" in request.path_params:
        return await models.get(name_in_path(request), caller=caller)
    if body.version is None and body.model is None:
        raise InvalidInput(InvalidField("required", "(root)", "version is required"))
    name, _, version = (body.version or "").partition(":")
    if "/" not in name:
        name, version = body.model or "", body.version or ""
        if body.version == "":
            raise ProblemError(invalid_version())
    candidates = await _named(name, models, caller) if name else await models.list(caller=caller)
    matching = [model for model in candidates if is_version_of(model, version)]
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
