"""The engine port on exllamav2: paged batches on a GPU.

Owns the order of loading and what a job must keep to be taken. The thread and its queue are
`loop`'s, the library's boundary is `generator`'s and `library`'s; nothing of the library is
imported before `load`.

Every capability is claimed. It cannot go on inside a constrained output: a constraint always begins
at its start.
"""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from service.adapters.engines.exllamav2 import attention_import
from service.adapters.engines.exllamav2.constraints import Constraints
from service.adapters.engines.exllamav2.model_files import read_model_files
from service.adapters.engines.exllamav2.prompting import Prompting
from service.adapters.engines.exllamav2.settings import ExLlamaV2Settings, pages
from service.adapters.engines.exllamav2.vocabulary import read_vocabulary
from service.adapters.prompts.template_file import read_template_file
from service.domain.request import Constraint, Prompt
from service.ports.engine import (
    Capability,
    ConstraintError,
    Deliver,
    Ended,
    EndReason,
    EngineInfo,
    EngineLoadError,
    Job,
)

if TYPE_CHECKING:
    from service.adapters.engines.exllamav2.generator import Generator
    from service.adapters.engines.exllamav2.library import Library
    from service.adapters.engines.exllamav2.loop import Loop


class ExLlamaV2Engine:
    """One model on exllamav2."""

    _generator: Generator
    _loop: Loop
    _library: Library

    def __init__(self, settings: ExLlamaV2Settings) -> None:
        """Load nothing yet."""
        self._settings = settings
        self._lock = threading.Lock()
        self._loaded = self._closed = False
        # Bound: the caller submits no more jobs than there are slots.
        self._to_compile: queue.SimpleQueue[Job | None] = queue.SimpleQueue()

    def load(self, progress: Callable[[float], None]) -> EngineInfo:
        """See `Engine`, promise 1."""
        settings = self._settings
        settings.check()
        progress(0.0)
        files = read_model_files(settings.model_path)
        if settings.chat_template is not None:
            files = replace(files, chat_template=read_template_file(settings.chat_template))
        vocabulary = read_vocabulary(files.tokenizer)
        self._prompting = Prompting(files, vocabulary)
        tools = self._prompting.tool_format
        if tools is not None:
            vocabulary = vocabulary.showing(tools.marks)
        eos = frozenset(files.eos_token_ids) | frozenset(self._prompting.turn_end_ids())
        named = vocabulary.id_of(files.eos_text)
        if named is not None:
            eos |= {named}
        eos = frozenset(i for i in eos if i < vocabulary.size)
        self._import()
        from service.adapters.engines.exllamav2 import library
        from service.adapters.engines.exllamav2.generator import Generator
        from service.adapters.engines.exllamav2.loop import Loop

        self._library = loaded = library.load(settings, files, vocabulary.size, tuple(sorted(eos)), progress)
        self._vocabulary_size = loaded.vocabulary_size
        self._constraints = Constraints(files.tokenizer, loaded.vocabulary_size, eos)
        self._generator = Generator(loaded, eos, settings.drafted_tokens, settings.chunk_tokens)
        if settings.warm_up:
            self._warm_up()
        self._loop = Loop(self._generator, vocabulary, eos)
        self._loop.start()
        threading.Thread(target=self._compile, name="exllamav2-constraints", daemon=True).start()
        self._loaded = True
        progress(1.0)
        return EngineInfo(
            engine="exllamav2",
            slots=settings.slots,
            context_tokens=loaded.context_tokens,
            vocabulary_size=loaded.vocabulary_size,
            chat_template=self._prompting.has_template,
            eos_token_ids=tuple(sorted(eos)),
            capabilities=frozenset(capability.value for capability in Capability),
            attention=loaded.attention,
            tool_format=tools.name if tools else "",
        )

    def prepare(self, prompt: Prompt, continuation: str = "") -> tuple[int, ...]:
        """See `Engine`, promise 2."""
        return self._prompting.ids(prompt, continuation)

    def check(self, constraint: Constraint) -> None:
        """See `Engine`, promise 9."""
        self._constraints.compile(constraint)

    def submit(self, job: Job, deliver: Deliver) -> None:
        """See `Engine`, promises 3 and 4."""
        with self._lock:
            closed = self._closed
            if not closed:
                self._loop.expect(job, deliver)
                if fault := "; ".join(self._faults(job)):
                    self._loop.refuse(job.id, fault)
                elif job.constraint is None:
                    self._loop.submit(job.id)
                else:
                    self._to_compile.put(job)
        if closed:
            deliver(Ended(job.id, EndReason.CANCELED))

    def cancel(self, job_id: str) -> None:
        """See `Engine`, promise 6."""
        self._loop.cancel(job_id)

    def close(self) -> None:
        """See `Engine`, promise 8."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not self._loaded:
            return
        self._to_compile.put(None)
        self._loop.close()
        if not closed:
            self._library.unload()

    def _import(self) -> None:
        """Import torch and the library, which compiles its kernels where no compiled ones are installed."""
        try:
            attention_import.import_library()
        except ImportError as error:
            raise EngineLoadError(
                f"exllamav2 is not installed completely ({error}): see docs/engines/exllamav2.md"
            ) from error
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            raise EngineLoadError(
                f"exllamav2's kernels could not be compiled or loaded ({type(error).__name__}): "
                "see docs/engines/exllamav2.md, Install"
            ) from error

    def _warm_up(self) -> None:
        try:
            self._generator.warm_up(self._library.context_tokens)
        except RuntimeError as error:  # torch's for everything on a GPU, out of memory included
            raise EngineLoadError(
                f"the model is loaded but cannot compute its first tokens ({error}): lower cache_tokens, "
                "batch_tokens or slots if memory is short; else see docs/engines/exllamav2.md"
            ) from error

    def _faults(self, job: Job) -> Iterator[str]:
        """Yield what keeps this job from ever running."""
        room, size = self._library.context_tokens, self._vocabulary_size
        total = len(job.token_ids) + job.max_tokens
        if total > room:
            yield f"prompt and max_tokens are {total} tokens together, but the context holds {room}"
        elif self._generator.pages_for(job) > self._generator.pages_total:
            yield f"the job needs {pages(total)} pages of the cache, which has {self._generator.pages_total}"
        if not job.token_ids:
            yield "the prompt is empty"
        if any(not 0 <= i < size for i in job.token_ids):
            yield f"the prompt holds ids outside of this model's {size} tokens"
        if any(i >= size for i, _ in job.sampling.logit_bias):
            yield f"sampling.logit_bias names ids outside of this model's {size} tokens"

    def _compile(self) -> None:
        """Compile constraints in a thread of its own: no other job waits for one."""
        while (job := self._to_compile.get()) is not None:
            if job.constraint is None:
                continue
            try:
                matcher = self._constraints.compile(job.constraint)
            except ConstraintError as error:
                self._loop.refuse(job.id, str(error))
            except Exception as error:  # noqa: BLE001 - the engine's thread: a bad constraint ends its job alone
                traceback.print_exc(file=sys.stderr)
                self._loop.refuse(job.id, f"the constraint could not be compiled: {type(error).__name__}")
            else:
                self._loop.submit(job.id, matcher)
