"""Log probabilities in OpenAI's meaning: of the model's own distribution, before any sampling setting.

The library's are taken after penalties, bias, truncation and temperature, and its `return_logits`
after the ones that it applies in place. So they are measured on the raw row before the sampler
gets it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from service.adapters.engines.exllamav2.vocabulary import Vocabulary
from service.domain.events import TokenLogprob, TopLogprob


@dataclass(frozen=True, slots=True)
class Row:
    """One position's distribution, as far as it will be asked for."""

    logprobs: Tensor
    """Of every token, on the host."""
    top: tuple[tuple[int, float], ...]
    """The most likely tokens, in falling order."""


def measure(logits: Tensor, vocabulary_size: int, count: int) -> Row:
    """Measure a raw row of any shape with one position in it."""
    logprobs = torch.log_softmax(logits.flatten()[:vocabulary_size].float(), dim=-1)
    if not count:
        return Row(logprobs, ())
    values, ids = logprobs.topk(min(count, vocabulary_size))
    return Row(logprobs, tuple(zip(ids.tolist(), values.tolist(), strict=True)))


def token_logprob(token_id: int, row: Row, vocabulary: Vocabulary) -> TokenLogprob:
    """Return the entry of the token that was drawn at this position."""
    data = vocabulary.pieces[token_id]
    top = tuple(TopLogprob(_text(piece := vocabulary.pieces[i]), piece, i, value) for i, value in row.top)
    return TokenLogprob(_text(data), data, token_id, float(row.logprobs[token_id]), top)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
