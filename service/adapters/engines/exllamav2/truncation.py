"""Top-k, top-p, min-p and typical-p in one pass over a row of logits.

The library has them, but not as everyone else does: its top-p leaves out the token that crosses the
limit (with 0.5 and probabilities 0.46, 0.28 … only the first is left), its typical-p too, and that
one measures surprise as p + ln p. So wherever one of the two is asked for, the row is cut here and
the library draws from what is left. Order and meaning are those of transformers' and llama.cpp's
samplers: each step works on what the one before left, renormalised.
"""

from __future__ import annotations

import torch
from torch import Tensor

from service.adapters.engines.exllamav2.sampling import cuts_itself
from service.domain.request import Sampling

_NEGLIGIBLE = 1e-9
"""Relative to the most likely token; below it a token is left out before sorting, which costs most."""


def truncate(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return the row with what may not be drawn at minus infinity. Takes a row of one dimension."""
    if not cuts_itself(sampling):
        return logits
    probabilities = torch.softmax(logits / sampling.temperature, -1)
    ids = (probabilities >= probabilities.max() * _NEGLIGIBLE).nonzero().flatten()
    p, order = probabilities[ids].sort(descending=True, stable=True)
    ids = ids[order]
    if 0 < sampling.top_k < len(ids):
        ids, p = ids[: sampling.top_k], p[: sampling.top_k]
    if sampling.top_p < 1:
        count = _reach(p / p.sum(), sampling.top_p)
        ids, p = ids[:count], p[:count]
    if sampling.min_p > 0:
        count = int((p >= p[0] * sampling.min_p).sum())
        ids, p = ids[:count], p[:count]
    if sampling.typical_p < 1:
        p = p / p.sum()
        surprise = -p.log()
        order = (surprise - (p * surprise).sum()).abs().sort(stable=True).indices
        ids = ids[order[: _reach(p[order], sampling.typical_p)]]
    left = torch.full_like(logits, float("-inf"))
    left[ids] = logits[ids]
    return left


def _reach(p: Tensor, limit: float) -> int:
    """Return how many of the first make up the limit together: the one that crosses it included."""
    before = p.cumsum(-1) - p
    return max(1, int((before < limit).sum()))
