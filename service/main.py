"""The service's one place that knows all parts: builds them from settings, starts and stops them.

Start order: store, webhooks, engine, predictions (which take up what was left unfinished), RPC. Stop
order, on SIGTERM or SIGINT: health says no, new work is refused, running predictions get the drain
time, streams end so that readers can resume, webhooks that are due are called, then engine and store
are closed. A second signal exits at once.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import structlog
import uvloop

from service import settings as settings_module
from service.adapters.stores.memory import MemoryStore
from service.adapters.stores.sqlite import SqliteStore
from service.adapters.system_clock import SystemClock
from service.adapters.webhook_body import ReplicateBody
from service.adapters.webhook_transport import HttpTransport
from service.domain.errors import StoreUnavailable
from service.domain.webhook_target import TargetPolicy
from service.logs import LogSettings, configure
from service.model_fetch import FetchError, fetch
from service.ports.store import PredictionStore
from service.rpc.server import CannotListen, RpcServer, ServerOptions
from service.runtime.dispatcher import Dispatcher, DispatcherSettings
from service.runtime.engine_process import EngineProcess, EngineProcessSettings
from service.runtime.models import Models
from service.runtime.prediction_settings import PredictionSettings
from service.runtime.predictions import Predictions
from service.runtime.retention import RetentionSettings, keep_clean
from service.runtime.webhooks import Webhooks, WebhookSettings
from service.settings import Settings, SettingsError
from service.webhook_secret import SecretFileError, load_secrets

log = structlog.get_logger()

WEBHOOK_FAREWELL = timedelta(seconds=1)
"""After the drain: for webhooks' calls that are due. What is left is sent after the next start."""


@asynccontextmanager
async def open_store(settings: Settings) -> AsyncGenerator[PredictionStore, None]:
    """Open the store that the settings name.

    Raises:
        StoreUnavailable: the file cannot be used; the message says why.
    """
    if settings.store == "memory":
        async with MemoryStore() as memory:
            yield memory
        return
    path = Path(settings.store_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    async with SqliteStore(path) as sqlite:
        yield sqlite


def engine_settings(settings: Settings) -> dict[str, object]:
    """Return what the adapter is told.

    Raises:
        FetchError: the demo model is wanted and cannot be had.
    """
    shared: dict[str, object] = {
        "slots": settings.engine_slots,
        "context_tokens": settings.engine_context_tokens,
        **settings.engine_options,
    }
    if settings.engine == "scripted":
        return shared
    if settings.chat_template_file:
        shared = {"chat_template": settings.chat_template_file, **shared}
    if settings.engine == "exllamav2":
        # The default suits a CPU; this engine has one of its own.
        given = "engine_batch_tokens" in settings.model_fields_set
        batch = {"batch_tokens": settings.engine_batch_tokens} if given else {}
        return {"model_path": settings.model_path, **batch, **shared}
    path = settings.model_path or str(fetch())
    threads = settings.engine_threads or None
    return {"model_path": path, "threads": threads, "batch_tokens": settings.engine_batch_tokens, **shared}


async def serve(settings: Settings) -> None:
    """Run the service until it has been told to stop and has drained.

    Raises:
        CannotListen, StoreUnavailable, FetchError, SecretFileError: it cannot start; the text says
            what to do.
    """
    clock = SystemClock()
    targets = TargetPolicy(settings.webhook_allow_http, settings.webhook_allow_private)
    signing = WebhookSettings(load_secrets(Path(settings.webhook_secret_file)))
    limits = PredictionSettings(
        readers_limit=settings.readers_limit,
        owner_limit=settings.owner_limit,
        run_limit=settings.run_limit,
        attach_grace=settings.attach_grace,
        webhook_targets=targets,
    )
    host = EngineProcess(
        EngineProcessSettings(
            engine=settings.engine,
            engine_settings=engine_settings(settings),
            hang_limit=settings.hang_limit,
        ),
        on_log=lambda line: log.debug("engine_log", **{"content.line": line}),
    )
    async with open_store(settings) as store:
        webhooks = Webhooks(
            store, HttpTransport(targets), ReplicateBody(), clock, signing, lambda: random.uniform(-1, 1)
        )
        predictions = Predictions(store, clock, limits, webhooks)
        queue = DispatcherSettings(queue_limit=settings.queue_limit, claim_limit=settings.claim_limit)
        name = settings.model_name
        dispatchers = {name: Dispatcher(name, host, store, predictions.writer, clock, queue)}
        predictions.serve(dispatchers)
        server = RpcServer(predictions, webhooks, Models(dispatchers), clock, _server_options(settings))
        retention = RetentionSettings(settings.retention_data, settings.retention_record)
        async with anyio.create_task_group() as tasks:
            await tasks.start(webhooks.run)
            tasks.start_soon(dispatchers[name].run)
            tasks.start_soon(predictions.run)
            tasks.start_soon(keep_clean, store, clock, retention)
            await tasks.start(server.run)
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                await anext(signals)
                tasks.start_soon(_exit_at_once, signals)
                log.info("draining")
                await server.drain(settings.drain)
                await webhooks.drain(WEBHOOK_FAREWELL)
            tasks.cancel_scope.cancel()
    log.info("stopped")


def _server_options(settings: Settings) -> ServerOptions:
    return ServerOptions(
        host=settings.host,
        port=settings.port,
        allow_public=settings.allow_public,
        stall_limit=settings.stall_limit,
        keepalive_time=settings.keepalive_time,
        keepalive_timeout=settings.keepalive_timeout,
        min_ping_interval=settings.min_ping_interval,
    )


async def _exit_at_once(signals: AsyncIterator[signal.Signals]) -> None:
    """Wait for another signal, and then for nothing."""
    await anext(signals)
    log.warning("stopped_at_once")
    os._exit(1)


def main() -> None:
    """Run the service; exit 2 with a readable reason if it cannot start."""
    try:
        settings = settings_module.load()
    except SettingsError as error:
        sys.exit(f"{error}\nSee docs/configuration.md.")
    if "--print-config" in sys.argv[1:]:
        sys.stdout.write(settings_module.describe(settings))
        return
    configure(LogSettings(settings.log_format, settings.log_level, settings.log_content))
    try:
        anyio.run(serve, settings, backend_options={"loop_factory": uvloop.new_event_loop})
    except* (CannotListen, StoreUnavailable, FetchError, SecretFileError) as group:
        reasons = [str(error) for error in _leaves(group)]
        sys.exit("\n".join(reasons))


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
