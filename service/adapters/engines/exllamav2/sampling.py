"""A request's sampling in the library's terms. Pure.

The library's `Settings()` is not neutral (temperature 0.8, top-k 50, top-p 0.8, repetition penalty
1.025), so every field is given. Its samplers run in the order penalties, bias, temperature, top-k,
top-p, min-p, typical-p, the same as our other engines'.

Differences in the library's reading of a value, settled here: a top-p of 0 is off there and "only
the most likely" with us; a min-p of 1 is off there and "as likely as the most likely" with us. A
temperature below 0.01 is greedy there; so it is. Its top-p and typical-p are not used: see
`truncation`. Repetition, frequency and presence penalties look at the whole context, the prompt
included.
"""

from __future__ import annotations

from service.domain.request import Sampling

_GREEDY_BELOW = 0.01
"""The library's own limit."""
Value = float | int | bool | None


def is_greedy(sampling: Sampling) -> bool:
    """Whether only the most likely token may be drawn."""
    return (
        sampling.temperature < _GREEDY_BELOW
        or sampling.top_p == 0
        or sampling.min_p >= 1
        or sampling.top_k == 1
    )


def cuts_itself(sampling: Sampling) -> bool:
    """Whether the row is cut by `truncation`, so that the library only draws."""
    return not is_greedy(sampling) and (sampling.top_p < 1 or sampling.typical_p < 1)


def sampler_values(sampling: Sampling) -> dict[str, Value]:
    """Return every numeric field of the library's `Settings`; its state and `token_bias` are not here."""
    greedy, cut = is_greedy(sampling), cuts_itself(sampling)
    return {
        "token_repetition_penalty": sampling.repetition_penalty,
        "token_repetition_range": -1,
        "token_repetition_decay": 0,
        "token_frequency_penalty": sampling.frequency_penalty,
        "token_presence_penalty": sampling.presence_penalty,
        "temperature": 1.0 if greedy else sampling.temperature,
        "smoothing_factor": 0.0,
        "min_temp": 0.0,
        "max_temp": 0.0,
        "temp_exponent": 1.0,
        "top_k": 1 if greedy else 0 if cut else sampling.top_k,
        "top_p": 0.0,
        "top_a": 0.0,
        "min_p": 0.0 if greedy or cut else sampling.min_p,
        "tfs": 0.0,
        "typical": 0.0,
        "skew": 0.0,
        "temperature_last": False,
        "mirostat": False,
        "mirostat_tau": 1.5,
        "mirostat_eta": 0.1,
        "mirostat_mu": None,
        "cfg_scale": None,
        "dry_allowed_length": 2,
        "dry_base": 1.75,
        "dry_multiplier": 0.0,
        "dry_sequence_breakers": None,
        "dry_range": 0,
        "dry_max_ngram": 20,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "xtc_ignore_tokens": None,
    }
