"""Owns the start and the end of an edge process: settings, then the service's channel, then HTTP."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import uvloop

from edge.app import create_app
from edge.auth.grants import GrantsError
from edge.auth.token_file import read_grants
from edge.http.lifecycle import Lifecycle
from edge.http.protocol import ConnectionLimits
from edge.http.server import ServerOptions, bind, serve
from edge.logs import open_log
from edge.settings import Settings, SettingsError, describe, load_settings
from edge.stream_secret import load_stream_secret
from edge.upstream.calls import CallPolicy
from edge.upstream.connection import open_upstream


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an edge until it is told to stop; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m edge", description="The HTTP side of Tailrace.")
    parser.add_argument("--print-config", action="store_true", help="print the settings and exit")
    options = parser.parse_args(arguments)
    try:
        settings = load_settings()
        if options.print_config:
            print(describe(settings))
            return 0
        secret = load_stream_secret(settings)
        _check_tokens(settings)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(settings, secret))


async def run(settings: Settings, secret: bytes) -> int:
    """Serve until the process is told to stop; return the exit status."""
    log = open_log(settings)
    try:
        listener = bind(settings.host, settings.port)
    except OSError as error:
        log.error("bind_failed", host=settings.host, port=settings.port, reason=error.strerror)
        return 1
    lifecycle = Lifecycle()
    policy = CallPolicy(settings.call_deadline, settings.call_retry_budget, settings.retry_budget)
    second = timedelta(seconds=1)
    limits = ConnectionLimits(settings.header_deadline, settings.body_deadline + second, settings.idle)
    server = ServerOptions(limits, settings.drain_notice, settings.drain_deadline)
    async with open_upstream(settings.service_address, policy, with_link=settings.link) as upstream:
        app = create_app(settings, upstream, lifecycle, secret, log)
        print(_greeting(settings, listener.getsockname()[1]), file=sys.stderr, flush=True)
        await serve(app, listener, server, lifecycle)
    log.info("edge_stopped")
    return 0


def _check_tokens(settings: Settings) -> None:
    """Raise SettingsError when the file of tokens cannot be used."""
    if settings.tokens_file:
        try:
            read_grants(Path(settings.tokens_file))
        except FileNotFoundError:
            text = f"there is no file {settings.tokens_file}; make a token with `make token`"
            raise SettingsError(f"EDGE_TOKENS_FILE: {text}") from None
        except GrantsError as error:
            raise SettingsError(f"EDGE_TOKENS_FILE: {error}") from None


def _greeting(settings: Settings, port: int) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{port}"
    return (
        f"Tailrace edge on {url}, service at {settings.service_address}\n"
        f"  Replicate clients:  REPLICATE_BASE_URL={url}\n"
        f"  OpenAI clients:     OPENAI_BASE_URL={url}/v1\n"
        f"  Anthropic clients:  ANTHROPIC_BASE_URL={url}\n"
        f"  playground          {url}/\n"
        f"  API tokens:         {settings.tokens_file or 'none are asked for'}\n"
        f"  ready?              curl {url}/readyz"
    )
