"""The engine port on llama.cpp's server inside this process.

Owns the threads, one a running job, and the order of a job's events. Bodies and answers are
`convert`'s, the connection is `loopback`'s, constraints are `constraints`'. It decides nothing
about stop strings.

Not claimed: `min_tokens`, for which the library has no parameter. It cannot go on inside a
constrained output either: a grammar always begins at its start.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import assert_never

from service.adapters.engines.llama_cpp import convert, library
from service.adapters.engines.llama_cpp.constraints import (
    Compiled,
    compile_constraint,
    refusal,
)
from service.adapters.engines.llama_cpp.gguf_file import GgufError, Value, read_metadata
from service.adapters.engines.llama_cpp.loopback import Loopback, LoopbackError, Stream
from service.adapters.engines.llama_cpp.prompting import Prompting
from service.adapters.engines.llama_cpp.settings import LlamaCppSettings
from service.adapters.engines.llama_cpp.vocabulary import Vocabulary
from service.adapters.prompts.chat_template import ChatTemplateError
from service.adapters.prompts.named_templates import TOOL_USE, joined
from service.adapters.prompts.template_file import read_template_file
from service.domain.request import Constraint, Prompt
from service.domain.stop import TokenPiece
from service.ports.engine import (
    Capability,
    ConstraintError,
    Deliver,
    Ended,
    EndReason,
    EngineEvent,
    EngineInfo,
    EngineLoadError,
    Job,
    Prefilled,
    Produced,
)

_CAPABILITIES = frozenset({
    Capability.TYPICAL_P, Capability.LOGIT_BIAS, Capability.STOP_TOKEN_IDS, Capability.IGNORE_EOS,
    Capability.JSON_SCHEMA, Capability.REGEX, Capability.GRAMMAR, Capability.LOGPROBS,
})  # fmt: skip
_MAX_DIGEST_BYTES = 8 * 1024**3
"""Larger files are read for their digest only if one is pinned: it would delay the start."""
_BLOCK_BYTES = 4 * 1024 * 1024
_COMPLETION = "/completion"
_TEMPLATE_KEY = "tokenizer.chat_template"
_CHECKED = 256
"""Constraints remembered; when full, all are forgotten and tried again."""
_log = logging.getLogger(__name__)


class _Receiver(Exception):
    """The job's `deliver` raised."""


class _Running:
    """One submitted job."""

    def __init__(self, job: Job, deliver: Deliver) -> None:
        self.job = job
        self.stream = Stream()
        self.sampled = 0
        self.cached = 0
        self._deliver = deliver

    def ended(self, reason: EndReason, error: str = "", *, invalid: bool = False) -> Ended:
        """Return the job's end with what was counted so far."""
        return Ended(self.job.id, reason, self.sampled, self.cached, error, invalid)

    def send(self, event: EngineEvent) -> None:
        """Hand an event over. Raises _Receiver."""
        try:
            self._deliver(event)
        except Exception as error:
            raise _Receiver from error


class LlamaCppEngine:
    """One GGUF model on llama.cpp."""

    def __init__(self, settings: LlamaCppSettings) -> None:
        """Load nothing yet."""
        self._settings = settings
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._closed = False
        self._pool = ThreadPoolExecutor(settings.slots, thread_name_prefix="llama-job")
        self._server: object | None = None
        self._eos: frozenset[int] = frozenset()
        self._checked: dict[Constraint, None] = {}
        """Constraints that passed their trial."""
        self._shown: tuple[str, ...] = ()
        """Control tokens whose text is output: the marks around calls."""

    def load(self, progress: Callable[[float], None]) -> EngineInfo:
        """See `Engine`, promise 1."""
        settings = self._settings
        progress(0.0)
        digest = self._digest(lambda done: progress(0.3 * done))
        try:
            self._vocabulary = Vocabulary.from_metadata(metadata := read_metadata(settings.model_path))
            template = self._template(metadata)
        except (GgufError, OSError) as error:
            raise EngineLoadError(
                f"{settings.model_path} is not a usable GGUF file ({error}): name another, or fetch it again"
            ) from error
        progress(0.35)
        key = secrets.token_urlsafe(32)
        self._server, address = library.start(settings, key)
        self._loopback = Loopback(address, key)
        progress(0.9)
        try:
            self._prompting = Prompting(self._loopback, self._vocabulary, template)
            contexts = convert.slot_contexts(self._loopback.get("/slots"))
            eos = convert.eos_ids(self._loopback.post(_COMPLETION, convert.probe_body(0)))
        except (LoopbackError, ChatTemplateError) as error:
            self.close()
            raise EngineLoadError(f"the model was loaded but does not work: {error}") from error
        self._eos = frozenset(eos)
        tools = self._prompting.tool_format
        controls = set(self._vocabulary.special.values())
        self._shown = tuple(mark for mark in (tools.marks if tools else ()) if mark in controls)
        progress(1.0)
        return EngineInfo(
            engine="llama_cpp",
            slots=len(contexts) - library.SPARE_SLOTS,
            context_tokens=min(contexts),
            vocabulary_size=self._vocabulary.size,
            chat_template=self._prompting.has_template,
            eos_token_ids=eos,
            capabilities=frozenset(c.value for c in _CAPABILITIES),
            weights_sha256=digest,
            tool_format=tools.name if tools else "",
        )

    def prepare(self, prompt: Prompt, continuation: str = "") -> tuple[int, ...]:
        """See `Engine`, promise 2."""
        return self._prompting.ids(prompt, continuation)

    def check(self, constraint: Constraint) -> None:
        """See `Engine`, promise 9. Takes the spare slot for a token, unless it was checked before."""
        try:
            self._tried(constraint, compile_constraint(constraint))
        except LoopbackError as error:
            raise ConstraintError(refusal(constraint) if error.refused else str(error)) from error

    def submit(self, job: Job, deliver: Deliver) -> None:
        """See `Engine`, promises 3 and 4."""
        running = _Running(job, deliver)
        with self._lock:
            if not self._closed:
                self._running[job.id] = running
                self._pool.submit(self._run, running)
                return
        self._end(running, Ended(job.id, EndReason.CANCELED))

    def cancel(self, job_id: str) -> None:
        """See `Engine`, promise 6."""
        with self._lock:
            running = self._running.get(job_id)
        if running is not None:
            running.stream.abort()

    def close(self) -> None:
        """See `Engine`, promise 8."""
        with self._lock:
            self._closed = True
            running = list(self._running.values())
        for one in running:
            one.stream.abort()
        self._pool.shutdown(wait=True)
        self._server = None

    def _run(self, running: _Running) -> None:
        """Run one job on this thread, to its end."""
        try:
            ended = self._generate(running)
        except _Receiver as error:
            _log.error("engine_receiver_failed", exc_info=error.__cause__)
            ended = running.ended(EndReason.FAILED, "the receiver of events failed")
        except LoopbackError as error:
            ended = running.ended(EndReason.FAILED, str(error), invalid=error.refused)
        except Exception as error:  # noqa: BLE001 - the engine thread's loop: whatever happens, the job ends
            _log.exception("engine_job_failed")
            ended = running.ended(EndReason.FAILED, repr(error))
        self._end(running, ended)

    def _end(self, running: _Running, ended: Ended) -> None:
        with self._lock:
            self._running.pop(running.job.id, None)
        try:
            running.send(ended)
        except _Receiver as error:
            _log.error("engine_receiver_failed", exc_info=error.__cause__)

    def _generate(self, running: _Running) -> Ended:
        job = running.job
        grammar = ""
        if running.stream.aborted():
            return running.ended(EndReason.CANCELED)
        for token_id in job.stop_token_ids:
            if token_id < self._vocabulary.size and not self._vocabulary.visible(token_id):
                text = f"stop token {token_id} is a part of a character, where this engine cannot stop"
                return running.ended(EndReason.FAILED, text, invalid=True)
        if job.constraint is not None:
            try:
                grammar = self._tried(job.constraint, compile_constraint(job.constraint))
            except ConstraintError as error:
                return running.ended(EndReason.FAILED, str(error), invalid=True)
        seed = secrets.randbits(31) if job.sampling.seed is None else job.sampling.seed
        body = convert.completion_body(
            job, seed, grammar=grammar, cache_prompt=self._settings.cache_prompts, shown=self._shown
        )
        with closing(self._loopback.stream(_COMPLETION, body, running.stream)) as messages:
            for data in messages:
                if running.stream.aborted():
                    break
                message = convert.read_message(data, job.logprobs, self._vocabulary.special)
                ended = self._take(running, message)
                if ended is not None:
                    return ended
        if running.stream.aborted():
            return running.ended(EndReason.CANCELED)
        return running.ended(EndReason.FAILED, "the library's answer broke off")

    def _tried(self, constraint: Constraint, compiled: Compiled) -> str:
        """Return the grammar once the library has shown that it takes it.

        Raises:
            ConstraintError: it generated against the grammar, so it has silently dropped it.
            LoopbackError: it refused the grammar.
        """
        if constraint not in self._checked:
            forbidden = self._vocabulary.ids[b"Z"][0]
            trial = compiled.trial or compiled.grammar
            answer = self._loopback.post(_COMPLETION, convert.trial_body(0, trial, forbidden))
            if compiled.trial and forbidden in convert.token_list(answer):
                raise ConstraintError(refusal(constraint))
            if len(self._checked) >= _CHECKED:
                self._checked.clear()
            self._checked[constraint] = None
        return compiled.grammar

    def _take(self, running: _Running, message: convert.Message) -> Ended | None:
        job = running.job
        match message:
            case convert.Progress(done, total, cached):
                running.cached = cached
                running.send(Prefilled(job.id, done, total, cached))
            case convert.Step(token_id=token_id) if token_id in self._eos:
                running.sampled = message.sampled
            case convert.Step():
                found = convert.pieces(message, running.sampled, self._vocabulary)
                running.sampled = message.sampled
                for piece in found:
                    running.send(Produced(job.id, piece))
            case convert.Finished(reason, sampled, cached):
                missing = sampled - running.sampled
                if missing > 0:
                    running.send(Produced(job.id, TokenPiece(b"", (), missing)))
                running.sampled, running.cached = sampled, cached
                return running.ended(reason)
            case convert.Trouble(text, at_fault):
                return running.ended(EndReason.FAILED, text, invalid=at_fault)
            case _ as unreachable:
                assert_never(unreachable)
        return None

    def _template(self, metadata: dict[str, Value]) -> str:
        if self._settings.chat_template is not None:
            return read_template_file(self._settings.chat_template)
        values = (metadata.get(key) for key in (_TEMPLATE_KEY, f"{_TEMPLATE_KEY}.{TOOL_USE}"))
        default, tool_use = (v.decode("utf-8", "replace") if isinstance(v, bytes) else "" for v in values)
        return joined(default, tool_use)

    def _digest(self, progress: Callable[[float], None]) -> str:
        path, pinned = self._settings.model_path, self._settings.sha256.lower()
        try:
            size = os.path.getsize(path)
            if not pinned and size > _MAX_DIGEST_BYTES:
                return ""
            digest = hashlib.sha256()
            done = 0
            with path.open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    digest.update(block)
                    done += len(block)
                    progress(min(done / size, 1.0))
        except OSError as error:
            raise EngineLoadError(
                f"the model file {path} cannot be read ({error.strerror}): name an existing GGUF file"
            ) from error
        found = digest.hexdigest()
        if pinned and found != pinned:
            raise EngineLoadError(
                f"{path} has sha256 {found}, not {pinned}: fetch the file again, or correct the digest"
            )
        return found
