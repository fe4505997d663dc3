"""Owns the objects that answers carry, as their readers see them: names, types, when null.

Models, versions, deployments and accounts are built from these classes. The prediction is rendered
by hand, since it is rendered most (`render`); a test holds it to its class here. The OpenAPI
document is generated from them, see `openapi`.
"""

from typing import Annotated, Final, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.json_schema import SkipJsonSchema

Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""RFC 3339 in UTC, six digits and `Z`."""

Url = Annotated[str, Field(json_schema_extra={"format": "uri"})]
"""Absolute."""

WebhookEventName = Literal["start", "output", "logs", "completed"]

T = TypeVar("T")

UNKNOWN_MOMENT: Final = "1970-01-01T00:00:00.000000Z"
"""Creation of what has none that we know, so that all edges say the same at all times."""


class _Object(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_serialization_defaults_required=True,
    )


class Page(_Object, Generic[T]):
    """One page of a list."""

    # pydantic looks for docstrings of fields where a class is made, which is anywhere for `Page[...]`.
    model_config = ConfigDict(use_attribute_docstrings=False)

    next: Url | None = Field(
        default=None, description="Absolute URL of the page that follows; null on the last one."
    )
    previous: Url | None = Field(default=None, description="Always null: pages are read forwards.")
    results: list[T]


class PredictionUrls(_Object):
    """Where a prediction is reached."""

    get: Url
    cancel: Url
    web: Url
    stream: Url
    """Its events as SSE; the URL is the credential."""


class Metrics(_Object):
    """Times in seconds, and token counts; empty until the end."""

    model_config = ConfigDict(extra="allow", json_schema_serialization_defaults_required=False)

    predict_time: float | SkipJsonSchema[None] = None
    total_time: float | SkipJsonSchema[None] = None
    input_token_count: int | SkipJsonSchema[None] = None
    output_token_count: int | SkipJsonSchema[None] = None
    tokens_per_second: float | SkipJsonSchema[None] = None
    time_to_first_token: float | SkipJsonSchema[None] = None
    """Counted from the creation, waiting included."""


class Prediction(_Object):
    """A prediction."""

    model_config = ConfigDict(extra="allow", json_schema_serialization_defaults_required=False)

    id: str
    model: str
    """`owner/name`."""

    version: str
    """Always `hidden`, as for Replicate's official models."""

    input: dict[str, JsonValue]
    """What was asked; empty once the data is removed."""

    logs: str | None
    output: list[str] | None
    """Pieces of text that joined are the text; grows. Null in a list and once the data is removed."""

    data_removed: bool
    error: str | None
    status: Literal["starting", "processing", "succeeded", "failed", "canceled"]
    source: Literal["api", "web"]
    created_at: Moment
    started_at: Moment | None
    completed_at: Moment | None
    metrics: Metrics
    urls: PredictionUrls
    deadline: Moment | SkipJsonSchema[None] = None
    """Only with `Cancel-After`."""

    deployment: str | SkipJsonSchema[None] = None
    """Only when created on a deployment: `owner/name`."""

    webhook: Url | SkipJsonSchema[None] = None
    """Only with a webhook: the URL that is called, `webhook_completed` included."""

    webhook_events_filter: list[WebhookEventName] | SkipJsonSchema[None] = None
    """Only with a filter: on what it is called."""


class WebhookSecret(_Object):
    """What verifies the calls of webhooks, as Standard Webhooks 1.0.0."""

    key: str
    """`whsec_` and standard base64."""


class WebhookCall(_Object):
    """One call of a webhook, over all its attempts."""

    id: str
    """Its `webhook-id` header."""

    event: WebhookEventName
    attempts: int
    delivered: bool
    given_up: bool
    """No attempt follows."""

    last_status: int | None
    """HTTP status of the last attempt; null if there was no answer."""

    last_error: str | None
    created_at: Moment
    attempted_at: Moment | None
    next_at: Moment | None


class WebhookCalls(_Object):
    """The calls of one prediction's webhook."""

    deliveries: list[WebhookCall]
    """Newest first."""


class StreamEvent(_Object):
    """One event of a stream."""

    event: Literal["output", "error", "done"]
    id: str
    """To resume after."""

    data: str
    """Of `output` its text, of the others a JSON object."""


class Version(_Object):
    """What a model serves now."""

    id: str
    """64 hexadecimal digits: the SHA-256 of the weights, where known."""

    created_at: Moment
    cog_version: str
    """Not made by Cog; high enough for clients to read `Output` as it is meant."""

    openapi_schema: dict[str, JsonValue]
    """Its `components.schemas.Input` and `Output`."""


class Model(_Object):
    """A served model."""

    url: Url
    owner: str
    name: str
    description: str
    visibility: Literal["public", "private"] = "public"
    is_official: bool = True
    """Predictions say `version: hidden`."""

    github_url: Url | None = None
    paper_url: Url | None = None
    license_url: Url | None = None
    run_count: int = 0
    """Not counted."""

    cover_image_url: Url | None = None
    default_example: None = None
    latest_version: Version


class Account(_Object):
    """Whose token it is."""

    type: Literal["user", "organization"] = "organization"
    username: str = "local"
    name: str = "Tailrace"
    github_url: Url | None = None
    avatar_url: Url | None = None


class Configuration(_Object):
    """Where a deployment runs."""

    hardware: str
    min_instances: int = 1
    max_instances: int = 1


class Release(_Object):
    """What a deployment runs now."""

    number: int = 1
    model: str
    version: str
    created_at: Moment = UNKNOWN_MOMENT
    created_by: Account
    configuration: Configuration


class Deployment(_Object):
    """A model with defaults and limits, under a name of its own."""

    owner: str
    name: str
    current_release: Release


class Hardware(_Object):
    """What models run on."""

    sku: str
    name: str


class PredictionPage(Page[Prediction]):
    """One page of predictions."""


class VersionPage(Page[Version]):
    """One page of versions."""


class ModelPage(Page[Model]):
    """One page of models."""


class SharedModel(Model):
    """A served model, with what OpenAI's and Anthropic's clients read of it beside it."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    type: Literal["model"]
    display_name: str
    created_at: Moment


class SharedModelPage(Page[SharedModel]):
    """All models, as three APIs list them."""

    object: Literal["list"]
    data: list[SharedModel]
    has_more: Literal[False]
    first_id: str | None
    last_id: str | None


class DeploymentPage(Page[Deployment]):
    """One page of deployments."""


class Collection(_Object):
    """A named list of models; there are none."""

    name: str
    slug: str
    description: str


class Training(_Object):
    """There are none."""

    id: str


class CollectionPage(Page[Collection]):
    """One page of collections."""


class TrainingPage(Page[Training]):
    """One page of trainings."""


class FoundModel(_Object):
    """A model that a search found."""

    model: Model
    metadata: dict[str, JsonValue]


class Found(_Object):
    """What a search found."""

    query: str
    models: list[FoundModel]
    collections: list[Collection]
    pages: list[JsonValue]


class InvalidField(_Object):
    """One fault of a request."""

    type: str
    field: str
    description: str


class Problem(_Object):
    """Problem details (RFC 9457)."""

    model_config = ConfigDict(extra="allow", json_schema_serialization_defaults_required=False)

    title: str
    status: int
    detail: str
    invalid_fields: list[InvalidField] | SkipJsonSchema[None] = None
