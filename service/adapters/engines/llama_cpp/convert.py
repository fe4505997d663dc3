"""Jobs and events between the port and the library's JSON.

Owns every sampling parameter's name and neutral value in llama.cpp: its defaults are not neutral
(temperature 0.8, top_k 40, top_p 0.95, min_p 0.05), so each is set on each job. Holds the only
`Any` of the adapter.

What the library cannot say, and what we do:

- Of a character made of several tokens it names the last. Where the bytes leave one possibility
  the others are inferred and each gets a piece of its own; otherwise one piece has no ids.
- With log probabilities such a character is one piece and one entry, without an id: its bytes,
  and the log probability of its last token.
- A character left incomplete at the end has no text: its tokens are counted in an empty piece.
- Bytes that are no UTF-8 come as U+FFFD unless they are a token of their own.
- Repetition, frequency and presence penalties look at the whole context, the prompt included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from service.adapters.engines.llama_cpp.vocabulary import Vocabulary
from service.domain.events import TokenLogprob, TopLogprob
from service.domain.request import Sampling
from service.domain.stop import TokenPiece
from service.ports.engine import EndReason, Job

_RANDOM_SEED = 0xFFFFFFFF
"""llama.cpp takes this one to mean a random seed."""
_ORDER = ["penalties", "temperature", "top_k", "top_p", "min_p", "typ_p"]
"""Temperature before the cuts, as in vLLM, Hugging Face and exllamav2."""
_GREEDY_ORDER = ["penalties", "top_k"]


def folded_seed(seed: int) -> int:
    """Return a seed of 32 bits; those below 2**32 - 1 stay as they are."""
    folded = (seed ^ (seed >> 32)) & 0xFFFFFFFF
    return folded if folded != _RANDOM_SEED else _RANDOM_SEED - 1


def completion_body(
    job: Job, seed: int, *, grammar: str, cache_prompt: bool, shown: Sequence[str] = ()
) -> dict[str, object]:
    """Return the call that runs `job`; `shown` are control tokens whose text is output."""
    return {
        "prompt": list(job.token_ids),
        "n_predict": job.max_tokens,
        "stream": True,
        "return_tokens": True,
        "return_progress": True,
        "cache_prompt": cache_prompt,
        "n_keep": 0,
        "n_discard": 0,
        "stop": [],
        "ignore_eos": job.ignore_eos,
        "grammar": grammar,
        "preserved_tokens": list(shown),
        "n_probs": 0 if job.logprobs is None else max(job.logprobs, 1),
        "post_sampling_probs": False,
        **_sampling(job.sampling, seed),
    }


def trial_body(prompt_id: int, grammar: str, forbidden_id: int) -> dict[str, object]:
    """Return the call that samples `forbidden_id` unless the grammar is in force."""
    return {
        "prompt": [prompt_id],
        "n_predict": 1,
        "stream": False,
        "return_tokens": True,
        "cache_prompt": False,
        "grammar": grammar,
        **_sampling(Sampling(temperature=0.0), 1),
        "logit_bias": [[forbidden_id, 1000.0]],
    }


def probe_body(prompt_id: int) -> dict[str, object]:
    """Return a call of one token whose answer names the end-of-generation tokens."""
    return {
        "prompt": [prompt_id],
        "n_predict": 1,
        "stream": False,
        "cache_prompt": False,
        "ignore_eos": True,
        **_sampling(Sampling(temperature=0.0), 1),
    }


def _sampling(s: Sampling, seed: int) -> dict[str, object]:
    greedy = s.temperature == 0
    penalised = s.repetition_penalty != 1 or s.frequency_penalty != 0 or s.presence_penalty != 0
    return {
        "samplers": _GREEDY_ORDER if greedy else _ORDER,
        "temperature": s.temperature,
        "top_k": 1 if greedy or s.top_p == 0 else s.top_k,
        "top_p": s.top_p if s.top_p > 0 else 1.0,
        "min_p": s.min_p,
        "typical_p": s.typical_p,
        "repeat_penalty": s.repetition_penalty,
        "frequency_penalty": s.frequency_penalty,
        "presence_penalty": s.presence_penalty,
        "repeat_last_n": -1 if penalised else 0,
        "logit_bias": [[i, bias] for i, bias in s.logit_bias],
        "seed": folded_seed(seed),
        "min_keep": 0,
        "top_n_sigma": -1.0,
        "dynatemp_range": 0.0,
        "xtc_probability": 0.0,
        "dry_multiplier": 0.0,
        "mirostat": 0,
        "adaptive_target": -1.0,
    }


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the prompt is."""

    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class Step:
    """Text came out."""

    text: str
    token_id: int | None
    """The last token's."""
    sampled: int
    """Tokens sampled so far."""
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The library stopped."""

    reason: EndReason
    sampled: int
    cached: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """The library reports an error instead of going on."""

    text: str
    at_fault: bool
    """The request was."""


Message = Progress | Step | Finished | Trouble


def read_message(data: Any, top: int | None, names: dict[int, str]) -> Message:
    """Return what a streamed object says; `names` are the texts of tokens without bytes."""
    if "error" in data:
        return Trouble(str(data["error"]), at_fault=_client_fault(data["error"]))
    if data.get("stop"):
        reason = EndReason.EOS if data.get("stop_type") == "eos" else EndReason.LENGTH
        cached = int(data.get("timings", {}).get("cache_n", 0))
        return Finished(reason, int(data["tokens_predicted"]), max(cached, 0))
    if "prompt_progress" in data:
        progress = data["prompt_progress"]
        return Progress(int(progress["processed"]), int(progress["total"]), int(progress["cache"]))
    ids = data.get("tokens") or [None]
    probabilities = data.get("completion_probabilities") if top is not None else None
    logprob = _logprob(probabilities[-1], top or 0, names) if probabilities else None
    return Step(data.get("content", ""), ids[-1], int(data["tokens_predicted"]), logprob)


def _client_fault(error: Any) -> bool:
    return isinstance(error, dict) and 400 <= int(error.get("code", 500)) < 500


def _logprob(entry: Any, top: int, names: dict[int, str]) -> TokenLogprob:
    tops = tuple(
        TopLogprob(_name(t, names), bytes(t["bytes"]), t["id"], float(t["logprob"]))
        for t in entry.get("top_logprobs", ())[:top]
    )
    return TokenLogprob(
        _name(entry, names), bytes(entry["bytes"]), entry["id"], float(entry["logprob"]), tops
    )


def _name(entry: Any, names: dict[int, str]) -> str:
    return str(entry["token"]) or names.get(entry["id"], "")


def pieces(step: Step, already: int, vocabulary: Vocabulary) -> Iterable[TokenPiece]:
    """Return the pieces of a step that comes after `already` sampled tokens."""
    count = step.sampled - already
    last = step.token_id
    if count <= 0 or last is None or not 0 <= last < vocabulary.size:
        return [TokenPiece(step.text.encode("utf-8", "replace"), (), max(count, 0))]
    logprobs = () if step.logprob is None else (step.logprob,)
    data = step.text.encode("utf-8", "replace")
    if count == 1:
        exact = vocabulary.pieces[last]
        return [
            TokenPiece(exact if exact.decode("utf-8", "replace") == step.text else data, (last,), 1, logprobs)
        ]
    if step.logprob is not None:
        whole = TokenLogprob(step.text, data, None, step.logprob.logprob)
        return [TokenPiece(data, (), count, (whole,))]
    ids = vocabulary.split(data, last, count)
    if ids is None:
        return [TokenPiece(data, (), count)]
    return [TokenPiece(vocabulary.pieces[i], (i,), 1) for i in ids]


def eos_ids(answer: Any) -> tuple[int, ...]:
    """Return the end-of-generation tokens that the answer to `probe_body` names."""
    biases = answer["generation_settings"]["logit_bias"]
    return tuple(sorted({int(b["token"]) for b in biases if b["bias"] is None or b["bias"] < -1e30}))


def slot_contexts(answer: Any) -> tuple[int, ...]:
    """Return the context length of each slot from the list of slots."""
    return tuple(int(slot["n_ctx"]) for slot in answer)


def token_list(answer: Any) -> list[int]:
    """Return the ids in an answer."""
    return [int(i) for i in answer["tokens"]]
