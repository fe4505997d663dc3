"""Owns the parts of answers that chat completions and completions share: ids, usage, finish reasons,
log probabilities, and the frames around them."""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from edge.http.wire_json import data_frame
from edge.openai.errors import upstream_body
from edge.protocol.tool_calls import ToolCallReader
from edge.upstream.errors import UpstreamError
from edge.upstream.events import Accepted, Completed, FinishReason, TokenLogprob, TopLogprob, Usage
from edge.upstream.records import ModelRecord

DONE: Final = b"data: [DONE]\n\n"
LEAST_LOGPROB: Final = -9999.0
"""Stands for minus infinity, which JSON has not."""


@dataclass(frozen=True, slots=True)
class Head:
    """What is the same in every chunk of one answer."""

    id: str
    kind: str
    created: int
    model: str
    system_fingerprint: str

    def with_choices(self, choices: list[dict[str, object]]) -> dict[str, object]:
        """Return a chunk."""
        return {
            "id": self.id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
            "choices": choices,
        }


def head_of(first: Accepted, model: ModelRecord, prefix: str, kind: str) -> Head:
    """Return the head of an answer; its id is that of the first prediction behind a prefix."""
    identity = f"{prefix}{first.prediction_id}"
    return Head(identity, kind, int(first.time.timestamp()), model.name, fingerprint(model))


def fingerprint(model: ModelRecord) -> str:
    """Return what changes when the weights or the engine do."""
    return f"fp_{model.engine}_{model.weights_sha256[:12]}".rstrip("_")


def usage_body(usage: Usage) -> dict[str, object]:
    """Return exact counts."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def finish_reason(end: Completed, reader: ToolCallReader | None = None) -> str:
    """Return why a prediction that succeeded ended; `reader` has read all of it."""
    if end.finish_reason is FinishReason.LENGTH and (reader is None or not reader.is_closed):
        return "length"
    return "tool_calls" if reader is not None and reader.calls else "stop"


def call_id(prediction_id: str, index: int) -> str:
    """Return the id of a prediction's call: the same whenever it is read."""
    return f"call_{prediction_id}_{index}"


def failure_frames(error: UpstreamError) -> bytes:
    """Return the end of a stream that failed: the error, no finish reason, then the mark of the end."""
    return data_frame(upstream_body(error), event="error") + DONE


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, object]:
    """Return the log probabilities of a chat answer's tokens."""
    return {"content": token_logprobs(tokens), "refusal": None}


def token_logprobs(tokens: Sequence[TokenLogprob]) -> list[dict[str, object]]:
    """Return the log probabilities of tokens, one an entry."""
    return [
        {
            "token": token.token,
            "bytes": list(token.data),
            "logprob": max(token.logprob, LEAST_LOGPROB),
            "top_logprobs": [
                {"token": top.token, "bytes": list(top.data), "logprob": max(top.logprob, LEAST_LOGPROB)}
                for top in token.top
            ],
        }
        for token in tokens
    ]


class TextLogprobs:
    """Log probabilities in the older form of completions, whose offsets count characters.

    It has no bytes, so a token that is not whole characters shows its own: `bytes:\\xf0\\x9f`.
    """

    __slots__ = ("_offset", "_top")

    def __init__(self, offset: int, top: int) -> None:
        """`offset`: characters before the first token; `top`: alternatives asked for."""
        self._offset = offset
        self._top = top

    def take(self, tokens: Sequence[TokenLogprob], characters: int) -> dict[str, object]:
        """Return the entry of `tokens`, whose text has so many characters."""
        offsets, at = [], self._offset
        decode = getincrementaldecoder("utf-8")("replace").decode  # characters may span tokens
        for token in tokens:
            offsets.append(at)
            at += len(decode(token.data))
        self._offset += characters
        top = [
            {_legible(other): max(other.logprob, LEAST_LOGPROB) for other in token.top} for token in tokens
        ]
        return {
            "tokens": [_legible(token) for token in tokens],
            "token_logprobs": [max(token.logprob, LEAST_LOGPROB) for token in tokens],
            "top_logprobs": top if self._top else None,
            "text_offset": offsets,
        }


def _legible(token: TokenLogprob | TopLogprob) -> str:
    try:
        token.data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.data)
    return token.token
