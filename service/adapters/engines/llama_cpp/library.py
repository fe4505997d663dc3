"""The one place that imports xllamacpp: start its server with our settings.

Every value that the library would otherwise choose by itself and that changes what a job gets is
set here: no context shift, no shared context, fixed batch sizes.
"""

from __future__ import annotations

import os
from typing import Any

from service.adapters.engines.llama_cpp.settings import LlamaCppSettings
from service.ports.engine import EngineLoadError

_QUIET = -1
_SPARE_HTTP_THREADS = 8
SPARE_SLOTS = 1
"""For trials of constraints, which must not wait until a job ends."""


def start(settings: LlamaCppSettings, key: str) -> tuple[object, str]:
    """Load the model; return the running server and its address. Raises EngineLoadError.

    The model lives as long as the returned object. `key` is what the listener asks callers for.
    """
    _wait_asleep()
    try:
        import xllamacpp
    except ImportError as error:
        raise EngineLoadError("xllamacpp is not installed: pip install 'tailrace[llama-cpp]'") from error
    try:
        server = xllamacpp.Server(_parameters(xllamacpp, settings, key))
        return server, str(server.listening_address)
    except (RuntimeError, ValueError) as error:
        raise EngineLoadError(
            f"llama.cpp cannot load {settings.model_path} ({error}): name another, or lower slots or context"
        ) from error


def _wait_asleep() -> None:
    """Let compute threads sleep, not spin, while they wait for each other; OpenMP reads it when loaded.

    On a machine that has other work too, spinning takes the processor from the thread that is waited
    for: seen on two busy cores, 2 tokens a second against 23.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # noqa: TID251 - set for a library, not read


def _parameters(xllamacpp: Any, settings: LlamaCppSettings, key: str) -> Any:
    threads = settings.threads or len(os.sched_getaffinity(0))
    p = xllamacpp.CommonParams()
    p.model.path = str(settings.model_path)
    p.n_parallel = settings.slots + SPARE_SLOTS
    p.n_ctx = p.n_parallel * settings.context_tokens
    p.n_batch = p.n_ubatch = max(settings.batch_tokens, settings.slots + SPARE_SLOTS)
    p.cpuparams.n_threads = threads
    p.cpuparams_batch.n_threads = threads
    p.n_gpu_layers = settings.gpu_layers
    p.kv_unified = False
    p.ctx_shift = False
    p.fit_params = False
    p.cache_prompt = settings.cache_prompts
    p.cache_ram_mib = 0
    p.cache_idle_slots = False
    p.n_cache_reuse = 0
    p.api_keys = [key]
    p.n_threads_http = 2 * settings.slots + _SPARE_HTTP_THREADS
    p.ui = False
    p.endpoint_slots = True
    p.verbosity = _QUIET
    return p
