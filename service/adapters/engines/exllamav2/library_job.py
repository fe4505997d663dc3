"""The library's job, with what it needs to be safe beside others.

An exception inside the library's `iterate()` loses the other jobs' tokens of that step and leaves
the page table ahead of them, which makes a later `iterate()` spin for ever. So a job never raises
there: whatever goes wrong in its sampling is kept in `failure`, the step is finished with an
end-of-turn token, and the loop ends this one job as failed.

Also here: exact token ids. The library holds ids back while their text looks unfinished, so each is
taken where it is sampled.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from exllamav2.ext import none_tensor
from exllamav2.generator import ExLlamaV2DynamicJob, ExLlamaV2Sampler
from exllamav2.generator.filters import ExLlamaV2Filter
from torch import Tensor

from service.adapters.engines.exllamav2.logprobs import Row, measure
from service.adapters.engines.exllamav2.sampling import cuts_itself, sampler_values
from service.adapters.engines.exllamav2.truncation import truncate
from service.domain.request import Sampling


class TokenFilter(ExLlamaV2Filter):  # type: ignore[misc]  # the library has no types
    """What may be drawn next in one job: its constraint, then its truncation, as a mask on the logits.

    The library calls it between penalties and temperature. It never raises and never excludes every
    token: on an error it leaves the end of turn, and says what went wrong in `failure`.
    """

    def __init__(self, sampling: Sampling, eos: frozenset[int], row_size: int, matcher: Any = None) -> None:
        """`matcher` is llguidance's, at its beginning. The library's constructor wants the model in vain."""
        self.background_result = None
        self.failure = ""
        self._sampling = sampling
        self._eos = sorted(eos)
        self._row_size = row_size
        self._matcher = matcher
        self._allowed: Tensor | None = None

    def begin(self, prefix_str: str) -> None:
        """Start where the matcher stands: at its beginning."""

    def feed(self, token: Tensor) -> None:
        """Take the sampled token."""
        token_id = int(token.item())
        if self._matcher is None or self.failure or token_id in self._eos:
            return
        try:
            if not self._matcher.consume_token(token_id):
                self.failure = self._matcher.get_error() or "the constraint does not take the sampled token"
        except Exception as error:  # noqa: BLE001 - inside the library's step nothing may raise
            self.failure = repr(error)

    def can_mask_logits(self) -> bool:
        """It works by masks only."""
        return True

    def use_background_worker(self) -> bool:
        """The mask is computed while the GPU works."""
        return True

    def prepare_logit_mask(self) -> bool:
        """Compute which tokens may come next."""
        try:
            if self._matcher is not None and not self.failure:
                self._allowed = self._mask()
        except Exception as error:  # noqa: BLE001 - as above
            self.failure = repr(error)
        return True

    def mask_logits(self, logits: Tensor) -> Tensor:
        """Return the row with everything else excluded."""
        if self.failure:
            masked = torch.full_like(logits, float("-inf"))
            masked[self._eos] = 0.0
            return masked
        if self._allowed is not None:
            logits = logits.masked_fill(~self._allowed[: logits.shape[0]], float("-inf"))
        return truncate(logits, self._sampling)

    def _mask(self) -> Tensor | None:
        bits = numpy.frombuffer(self._matcher.compute_bitmask(), dtype=numpy.uint8)
        if self._matcher.is_error():
            self.failure = self._matcher.get_error()
            return None
        if not bits.any():
            self.failure = "the constraint leaves no token that could come next"
            return None
        allowed = torch.zeros(self._row_size, dtype=torch.bool)
        found = torch.from_numpy(numpy.unpackbits(bits, bitorder="little")).bool()[: self._row_size]
        allowed[: found.shape[0]] = found
        return allowed


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token as it was drawn."""

    token_id: int
    row: Row | None


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What one job of ours is, in the library's terms."""

    token_ids: tuple[int, ...]
    new_tokens: int
    """Output tokens, with what a step may hold beyond its first."""
    min_tokens: int
    ending: frozenset[int]
    """Ids that end it, and that are not drawn before `min_tokens`."""
    eos: frozenset[int]
    """The model's end-of-turn ids: what a failing step is finished with."""
    sampling: Sampling
    seed: int
    vocabulary_size: int
    row_size: int
    """Numbers in a row of logits: the vocabulary, padded."""
    logprobs: int | None = None
    matcher: Any = None
    """llguidance's, for a constrained job."""


class LibraryJob(ExLlamaV2DynamicJob):  # type: ignore[misc]  # the library has no types
    """See the module."""

    def __init__(self, options: JobOptions) -> None:
        """Build; raises nothing for options that the engine has checked."""
        limits = options.matcher is not None or cuts_itself(options.sampling)
        self._filter = (
            TokenFilter(options.sampling, options.eos, options.row_size, options.matcher) if limits else None
        )
        super().__init__(
            input_ids=torch.tensor([options.token_ids], dtype=torch.long),
            max_new_tokens=options.new_tokens,
            min_new_tokens=options.min_tokens,
            gen_settings=_sampler_settings(options),
            seed=options.seed,
            stop_conditions=sorted(options.ending),
            filters=[self._filter] if self._filter is not None else [],
        )
        self._options = options
        self._row: Row | None = None
        self._failure = ""
        self._drawn: list[Sampled] = []

    @property
    def failure(self) -> str:
        """Return what went wrong in this job's sampling; empty if nothing did."""
        return self._failure or (self._filter.failure if self._filter is not None else "")

    def take(self) -> list[Sampled]:
        """Return the tokens drawn since the last call."""
        drawn, self._drawn = self._drawn, []
        return drawn

    def receive_logits(self, logits: Tensor) -> Any:
        """Draw from one raw row. Runs in the library's step, or in a thread of its pool."""
        options = self._options
        try:
            if not bool(torch.isfinite(logits[..., : options.vocabulary_size].sum())):
                raise ArithmeticError("the model's output is not a number")
            if options.logprobs is not None:
                self._row = measure(logits, options.vocabulary_size, options.logprobs)
            return super().receive_logits(logits)
        except Exception as error:  # noqa: BLE001 - inside the library's step nothing may raise
            traceback.print_exc()
            self._failure = self._failure or repr(error)
            ending = min(options.ending or options.eos or {0})
            return torch.tensor([[ending]]), none_tensor, none_tensor, torch.tensor([[1.0]]), False

    def receive_sample(self, logits: Tensor, next_token: Tensor, *rest: Any) -> Any:
        """Keep the token, then let the library do its book-keeping."""
        self._drawn.append(Sampled(int(next_token.item()), self._row))
        return super().receive_sample(logits, next_token, *rest)


def _sampler_settings(options: JobOptions) -> Any:
    """Return a fresh settings object: it keeps state of one job."""
    settings = ExLlamaV2Sampler.Settings(**sampler_values(options.sampling))
    if options.sampling.logit_bias:
        bias = torch.zeros(options.row_size)
        for token_id, value in options.sampling.logit_bias:
            bias[token_id] += value
        settings.token_bias = bias
    return settings
