"""One step of the batch, in our terms: jobs in, what came out of each.

Owns the boundary to the library's dynamic generator. Single-threaded: the loop's thread alone.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from service.adapters.engines.exllamav2.library import Library
from service.adapters.engines.exllamav2.library_job import JobOptions, LibraryJob, Sampled
from service.adapters.engines.exllamav2.settings import PAGE_TOKENS, pages
from service.domain.request import Sampling
from service.ports.engine import Job

_NO_END = 2**31 - 1
"""More tokens than any job has: an id that may not be drawn before them is never drawn."""


class Over(Enum):
    """Why the library ended a job."""

    TOKEN = "stop_token"
    LENGTH = "max_new_tokens"


@dataclass(slots=True)
class Running:
    """A job in the library's hands."""

    job: Job
    _library_job: LibraryJob
    over: Over | None = None
    """Set once the library has freed its pages."""
    _fresh: list[Sampled] = field(default_factory=list)

    @property
    def prompt_done(self) -> int:
        """Return how many prompt tokens are computed; the last is computed with the first output."""
        total = len(self.job.token_ids)
        position = int(self._library_job.sequences[0].kv_position)
        return total if position >= total - 1 else position

    @property
    def prompt_left(self) -> int:
        """Return how many are not yet."""
        return len(self.job.token_ids) - self.prompt_done

    @property
    def cached_tokens(self) -> int:
        """Return how many came from an earlier prompt's pages."""
        found = self._library_job
        return min(int(found.cached_pages * PAGE_TOKENS + found.cached_tokens), len(self.job.token_ids))

    @property
    def failure(self) -> str:
        """Return what went wrong in this job's own sampling."""
        return self._library_job.failure

    def take(self) -> list[Sampled]:
        """Return the tokens drawn since the last call."""
        return self._library_job.take()


class Generator:
    """The library's generator, one job a sequence."""

    def __init__(self, library: Library, eos: frozenset[int], drafted_tokens: int, chunk_tokens: int) -> None:
        self._library = library
        self._generator = library.generator
        self._eos = eos
        self._drafted = drafted_tokens
        self.chunk_tokens = chunk_tokens
        self._running: dict[int, Running] = {}

    @property
    def pages_total(self) -> int:
        """Return all pages of the cache."""
        return int(self._generator.max_pages)

    @property
    def pages_free(self) -> int:
        """Return the pages that no running job holds."""
        return len(self._generator.unreferenced_pages)

    def pages_for(self, job: Job) -> int:
        """Return the pages that the library reserves for a job at most."""
        return pages(len(job.token_ids) + self._new_tokens(job))

    def prepare(self, job: Job, matcher: Any = None) -> Running:
        """Build a job. It takes nothing of the cache yet."""
        eos = self._eos
        if job.ignore_eos:
            ending, min_tokens = eos - frozenset(job.stop_token_ids), _NO_END
        else:
            ending, min_tokens = eos, job.min_tokens
        seed = secrets.randbits(63) if job.sampling.seed is None else job.sampling.seed
        options = JobOptions(
            token_ids=job.token_ids,
            new_tokens=self._new_tokens(job),
            min_tokens=min_tokens,
            ending=ending,
            eos=eos,
            sampling=job.sampling,
            seed=seed,
            vocabulary_size=self._library.vocabulary_size,
            row_size=self._library.row_size,
            logprobs=job.logprobs,
            matcher=matcher,
        )
        library_job = LibraryJob(options)
        library_job.prepare_for_queue(self._generator, 0)  # hashes its pages, so that `fits` can ask
        return Running(job, library_job)

    def fits(self, running: Running) -> bool:
        """Whether the cache has the pages for it now; pages shared with running jobs count once."""
        return int(running._library_job.current_new_pages_required()) <= self.pages_free

    def start(self, running: Running) -> None:
        """Hand a job that fits to the library."""
        self._generator.enqueue(running._library_job)
        self._running[id(running._library_job)] = running

    def cancel(self, running: Running) -> None:
        """Take a job out and free its pages. Nothing happens if it is over."""
        self._generator.cancel(running._library_job)
        self._running.pop(id(running._library_job), None)

    def step(self) -> None:
        """Compute a chunk of each unread prompt and a token of every other job.

        An exception means that the library's own state is no longer known.
        """
        for result in self._generator.iterate():
            if result["stage"] == "streaming" and result["eos"]:
                running = self._running.pop(id(result["job"]), None)
                if running is not None:
                    length = result["eos_reason"] == Over.LENGTH.value
                    running.over = Over.LENGTH if length else Over.TOKEN

    def warm_up(self, context_tokens: int) -> None:
        """Run a job with a whole chunk of prompt, then forget what it left in the cache.

        Kernels are tuned then, and the memory of the largest step is known to be there.
        """
        new = min(16, context_tokens // 2)
        prompt = min(self.chunk_tokens + 1, context_tokens - new)
        self.start(
            self.prepare(
                Job("warm-up", (min(self._eos, default=0),) * prompt, new, Sampling(), ignore_eos=True)
            )
        )
        while self._running:
            self.step()
        self._generator.reset_page_table()

    def _new_tokens(self, job: Job) -> int:
        """A job ends as many tokens early as are drafted, so it is given that many more."""
        return job.max_tokens + self._drafted
