"""Owns what is asked of the service and what it answers about a prediction or model, free of gRPC.

Bounds and meanings are those of `protos/tailrace/v1`; the service checks them, dialects check them
earlier where their error shape needs it.
"""

import enum
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from edge.upstream.events import FinishReason, MatchedStop, Status, Usage


@dataclass(frozen=True, slots=True)
class TextInput:
    """Raw text, tokenised as it stands."""

    text: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may ask its caller to call."""

    name: str
    description: str = ""
    parameters: str = ""
    """The JSON Schema of its arguments as JSON text; empty: none."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made in an earlier turn."""

    id: str
    name: str
    arguments: str = ""
    """A JSON object as text; empty: none."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """Of an assistant."""

    tool_call_id: str = ""
    """Of a tool: the call that this is the result of."""


@dataclass(frozen=True, slots=True)
class ChatInput:
    """Messages for the model's chat template."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()
    forced_tool: str | None = None
    """None: the model decides. Else the output is one call as JSON: of this tool, or of any if empty."""

    continue_final_message: bool = False
    """Whether the output goes on where the last message, the assistant's, breaks off."""


@dataclass(frozen=True, slots=True)
class TokenInput:
    """Token ids, fed as they are."""

    token_ids: tuple[int, ...]


ModelInput = TextInput | ChatInput | TokenInput


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn; None leaves the service's neutral default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, -100 to 100), in the order of the ids."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """When generation ends; None leaves the service's default."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """Everything that decides the text."""

    input: ModelInput
    sampling: Sampling = field(default_factory=Sampling)
    stopping: Stopping = field(default_factory=Stopping)
    json_schema: str | None = None
    """JSON text; None leaves the output free."""

    top_logprobs: int | None = None
    """Alternatives beside each token's own probability; None computes none."""

    priority: int = 0
    """-100 to 100; higher is served first."""


class WebhookEvent(enum.Enum):
    """When a webhook is called; the value is its public spelling."""

    START = "start"
    OUTPUT = "output"
    LOGS = "logs"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class Webhook:
    """Whom to tell of a prediction's progress."""

    url: str
    events: tuple[WebhookEvent, ...] = ()
    """Empty: all of them."""

    context: str = ""
    """What the body is written with, as JSON (`protos.replicate_object`); not given back."""


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """One call of a webhook, over all its attempts."""

    id: str
    prediction_id: str
    event: WebhookEvent
    attempts: int
    delivered: bool
    given_up: bool
    last_status: int
    """0 if there was no answer."""

    last_error: str
    created_at: datetime
    attempted_at: datetime | None
    next_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewPrediction:
    """What a create asks for."""

    model: str
    """A served model's name."""

    generation: Generation

    cancel_after: timedelta | None = None
    """When to cancel by itself; None: the service's run limit."""

    labels: tuple[tuple[str, str], ...] = ()
    """Free pairs kept with the prediction, at most 64 KiB in all. Those whose key starts with `data.`
    go with its data."""

    request_id: str = ""
    """Names the create among its owner's for 24 h: the same body makes no second prediction, another
    one is refused. At most 128 printable ASCII characters; empty: a fresh one."""

    prediction_id: str = ""
    """The id it is to have, 1 to 64 of a-z, 0-9 and hyphens; empty: one of the service's. One that is
    taken counts like a request id that was used."""

    fresh_id: str = ""
    """The id of a new prediction that has no `prediction_id`; names none that is there already."""

    webhook: Webhook | None = None


@dataclass(frozen=True, slots=True)
class PredictionRecord:
    """A prediction as it stands."""

    id: str
    model: str
    generation: Generation | None
    """None once the data has been removed, or when left out on request."""

    status: Status
    output: tuple[str, ...]
    """Text of each output event; joined they are the output."""

    created_at: datetime
    started_at: datetime | None = None
    first_output_at: datetime | None = None
    completed_at: datetime | None = None
    deadline: datetime | None = None
    finish_reason: FinishReason | None = None
    matched_stop: MatchedStop | None = None
    usage: Usage = field(default_factory=Usage)
    error: str = ""
    """Empty unless failed."""

    labels: tuple[tuple[str, str], ...] = ()
    last_sequence: int = 0
    """Latest log entry."""

    data_removed: bool = False
    logs: str = ""
    replayed: bool = False
    """In the answer to a create: an earlier create had made it."""
    webhook: Webhook | None = None


@dataclass(frozen=True, slots=True)
class PredictionPage:
    """Some predictions, the newest first."""

    records: tuple[PredictionRecord, ...]
    next_page_token: str
    """Empty on the last page."""


class ModelState(enum.Enum):
    """Whether a model can take work."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A served model."""

    name: str
    """`owner/name`."""

    state: ModelState
    engine: str
    """Empty while loading for the first time, when nothing below is known either."""

    context_tokens: int
    chat_template: bool
    """Whether chat input can be rendered."""

    weights_sha256: str
    """Hexadecimal; empty where unknown."""

    tool_format: str = ""
    """How it writes tool calls (`tailrace.v1.Model`); empty: it takes no tools."""

    @property
    def is_known(self) -> bool:
        """Whether the facts below `engine` are meaningful."""
        return bool(self.engine)
