"""Owns the table of Replicate's API: every endpoint once, as data.

Routes are made from it (`routing`) and so is the OpenAPI document (`openapi`), so neither has an
endpoint that the other lacks. An operation is named as Replicate's own document names it. Paths are
without `/v1`; everything is served with and without it. A method that a path does not have is
answered 405 by the router, which covers the writes that make no sense on one's own machine.
"""

from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from edge.replicate import objects
from edge.replicate.schemas import CreateBody

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
TEXT: Final = "text/plain"
ANY: Final = "*/*"


class DeploymentCreateBody(CreateBody):
    """The body of a create whose path says what to run; `version` and `model` are not read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One way an endpoint answers; refusals are the same for all and not listed."""

    status: int
    description: str
    content: type[BaseModel] | None = None
    """What a JSON body holds; None for other media and for no body."""

    is_list: bool = False
    """Whether the JSON body is a bare list of it."""

    media: str = ""
    """Media type of a body that is no JSON."""

    headers: tuple[str, ...] = ()
    """Headers to rely on."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One query parameter or header that an endpoint reads."""

    name: str
    where: str
    description: str
    format: str = ""
    """`date-time`, `integer`; empty for any text."""

    required: bool = False


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method on one path."""

    method: str
    path: str
    operation: str
    """Its name; what serves it is looked up by this."""

    summary: str
    answers: tuple[Answer, ...]
    parameters: tuple[Parameter, ...] = ()
    body: type[BaseModel] | str | None = None
    """A model of a JSON body, or the media type of another."""

    @property
    def tag(self) -> str:
        """What it is about."""
        return self.operation.partition(".")[0]


PATH_PARAMETERS: Final = {
    "prediction_id": "From a create, or chosen by a PUT: 1 to 64 of a-z, 0-9 and hyphens.",
    "owner": "The part before the slash of a name.",
    "name": "The part after it.",
    "version_id": "64 hexadecimal digits, or `hidden` for what is served now.",
    "token": "From `urls.stream`; it is the credential.",
    "slug": "A collection's name.",
    "training_id": "A training's id.",
    "file_id": "A file's id.",
}

_PREFER: Final = Parameter(
    "Prefer", "header", "`wait` or `wait=N`: answer when it has ended, after N s (60 at most) at the latest."
)
_CANCEL_AFTER: Final = Parameter(
    "Cancel-After", "header", "Cancel by itself: `30`, `30s`, `5m`, `1h30m`; 5 s to 24 h after the creation."
)
_IDEMPOTENCY_KEY: Final = Parameter(
    "Idempotency-Key", "header", "Names this create for 24 h: a repeat of the same body creates nothing."
)
_CREATE: Final = (_PREFER, _CANCEL_AFTER, _IDEMPOTENCY_KEY)
_CREATED: Final = (
    Answer(200, "A repeat: created before.", objects.Prediction, headers=("Location", "Idempotent-Replayed")),
    Answer(
        201,
        "Created; ended, if it was waited for.",
        objects.Prediction,
        headers=("Location", "Preference-Applied"),
    ),
    Answer(
        202,
        "The wait is over before it ended.",
        objects.Prediction,
        headers=("Location", "Preference-Applied"),
    ),
)
_CURSOR: Final = Parameter("cursor", "query", "From the URL of a `next`.")
_LIST: Final = (
    _CURSOR,
    Parameter("created_after", "query", "Created at this time or later.", "date-time"),
    Parameter("created_before", "query", "Created before this time.", "date-time"),
    Parameter("source", "query", "`api` or `web`; both without it."),
)
_RESUME: Final = (
    Parameter("Last-Event-ID", "header", "Go on after this event."),
    Parameter("last_event_id", "query", "The same, where no header can be set."),
)
_UNSERVED: Final = (Answer(501, "Not served here.", objects.Problem, media="application/problem+json"),)
_FILES: Final = "Files are not served: give inputs as text."


def _one(content: type[BaseModel], description: str = "As it stands.") -> tuple[Answer, ...]:
    return (Answer(200, description, content),)


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/predictions",
        "predictions.create",
        "Create a prediction on a version or model",
        _CREATED,
        _CREATE,
        CreateBody,
    ),
    Endpoint(
        "GET",
        "/predictions",
        "predictions.list",
        "List predictions, the newest first, 100 a page, without output",
        _one(objects.PredictionPage, "A page."),
        _LIST,
    ),
    Endpoint(
        "GET",
        "/predictions/{prediction_id}",
        "predictions.get",
        "Get a prediction; its output grows while it runs",
        _one(objects.Prediction),
    ),
    Endpoint(
        "PUT",
        "/predictions/{prediction_id}",
        "predictions.put",
        "Create a prediction of this id; a repeat creates nothing",
        _CREATED,
        _CREATE,
        CreateBody,
    ),
    Endpoint(
        "POST",
        "/predictions/{prediction_id}/cancel",
        "predictions.cancel",
        "Cancel a prediction; one that has ended is returned unchanged",
        _one(objects.Prediction),
    ),
    Endpoint(
        "GET",
        "/predictions/{prediction_id}/webhook-deliveries",
        "predictions.webhook_deliveries",
        "List the calls of a prediction's webhook",
        _one(objects.WebhookCalls),
    ),
    Endpoint(
        "GET",
        "/streams/{token}",
        "predictions.stream",
        "Stream a prediction's events",
        (
            Answer(200, "Events, as they come.", objects.StreamEvent, media=EVENTS),
            Answer(204, "There is nothing after this position."),
        ),
        _RESUME,
    ),
    Endpoint(
        "GET",
        "/models",
        "models.list",
        "List the served models",
        _one(objects.SharedModelPage, "All of them."),
        (_CURSOR,),
    ),
    Endpoint(
        "QUERY",
        "/models",
        "models.search",
        "Find models by a word in the body",
        _one(objects.ModelPage, "All that match."),
        body=TEXT,
    ),
    Endpoint("GET", "/models/{owner}/{name}", "models.get", "Get a model", _one(objects.SharedModel)),
    Endpoint(
        "POST",
        "/models/{owner}/{name}/predictions",
        "models.predictions.create",
        "Create a prediction on a model",
        _CREATED,
        _CREATE,
        CreateBody,
    ),
    Endpoint(
        "GET",
        "/models/{owner}/{name}/versions",
        "models.versions.list",
        "List a model's versions: the one it serves",
        _one(objects.VersionPage, "All of them."),
        (_CURSOR,),
    ),
    Endpoint(
        "GET",
        "/models/{owner}/{name}/versions/{version_id}",
        "models.versions.get",
        "Get a version, with the schemas of its input and output",
        _one(objects.Version),
    ),
    Endpoint(
        "POST",
        "/models/{owner}/{name}/versions/{version_id}/trainings",
        "trainings.create",
        "Train: not served",
        _UNSERVED,
        body=ANY,
    ),
    Endpoint(
        "GET",
        "/models/{owner}/{name}/readme",
        "models.readme.get",
        "Get a page about a model",
        (Answer(200, "Markdown.", media=TEXT),),
    ),
    Endpoint(
        "GET",
        "/models/{owner}/{name}/examples",
        "models.examples.list",
        "List example predictions: none",
        _one(objects.PredictionPage, "An empty page."),
        (_CURSOR,),
    ),
    Endpoint(
        "GET",
        "/search",
        "search",
        "Find models by a word in their names",
        _one(objects.Found, "What was found."),
        (Parameter("query", "query", "The word; empty finds all."),),
    ),
    Endpoint(
        "GET",
        "/deployments",
        "deployments.list",
        "List the deployments of the settings",
        _one(objects.DeploymentPage, "All of them."),
        (_CURSOR,),
    ),
    Endpoint(
        "GET",
        "/deployments/{owner}/{name}",
        "deployments.get",
        "Get a deployment",
        _one(objects.Deployment),
    ),
    Endpoint(
        "POST",
        "/deployments/{owner}/{name}/predictions",
        "deployments.predictions.create",
        "Create a prediction on a deployment",
        _CREATED,
        _CREATE,
        DeploymentCreateBody,
    ),
    Endpoint(
        "GET",
        "/webhooks/default/secret",
        "webhooks.default.secret.get",
        "Get the secret that calls of webhooks are verified with",
        _one(objects.WebhookSecret, "The current one."),
    ),
    Endpoint("GET", "/account", "account.get", "Get the account", _one(objects.Account)),
    Endpoint(
        "GET",
        "/hardware",
        "hardware.list",
        "List the hardware",
        (Answer(200, "All of it.", objects.Hardware, is_list=True),),
    ),
    Endpoint(
        "GET",
        "/collections",
        "collections.list",
        "List collections: none",
        _one(objects.CollectionPage, "An empty page."),
        (_CURSOR,),
    ),
    Endpoint("GET", "/collections/{slug}", "collections.get", "Get a collection: there is none", ()),
    Endpoint(
        "GET",
        "/trainings",
        "trainings.list",
        "List trainings: none",
        _one(objects.TrainingPage, "An empty page."),
        (_CURSOR,),
    ),
    Endpoint("GET", "/trainings/{training_id}", "trainings.get", "Get a training: there is none", ()),
    Endpoint(
        "POST", "/trainings/{training_id}/cancel", "trainings.cancel", "Cancel a training: there is none", ()
    ),
    Endpoint("POST", "/files", "files.create", _FILES, _UNSERVED, body=ANY),
    Endpoint("GET", "/files", "files.list", _FILES, _UNSERVED),
    Endpoint("GET", "/files/{file_id}", "files.get", _FILES, _UNSERVED),
    Endpoint("DELETE", "/files/{file_id}", "files.delete", _FILES, _UNSERVED),
    Endpoint("GET", "/files/{file_id}/download", "files.download", _FILES, _UNSERVED),
)
"""In the order in which documents show them."""
