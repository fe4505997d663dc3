"""`python -m edge` as a process: its start, its drain, its exit."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import httpx
import pytest

from tests.support.fake_service import MODEL, FakeService, serve_fake

LIMIT_S = 40
ROOT = Path(__file__).resolve().parents[2]
BODY = {"version": MODEL, "input": {"prompt": "x"}}


class Process:
    """A running edge and what it printed."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self.process = process
        self.printed = ""

    async def url(self) -> str:
        """Return where it listens, as it says itself."""
        await self.until("/readyz\n")
        return self.printed.split("Tailrace edge on ")[1].split(",")[0]

    async def until(self, text: str) -> None:
        assert self.process.stderr is not None
        while text not in self.printed:
            self.printed += (await self.process.stderr.receive()).decode()


@asynccontextmanager
async def edge_process(tmp_path: Path, address: str, **settings: str) -> AsyncIterator[Process]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EDGE_")}
    environment = {
        **inherited,
        "EDGE_PORT": "0",
        "EDGE_SERVICE_ADDRESS": address,
        "EDGE_STREAM_SECRET_FILE": str(tmp_path / "secret"),
        "EDGE_DRAIN_SPREAD": "0",
        **{f"EDGE_{name.upper()}": value for name, value in settings.items()},
    }
    process = await anyio.open_process(
        [sys.executable, "-m", "edge"], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
    )
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()


async def test_sigterm_ends_streams_with_a_hint_and_the_process_with_success(tmp_path: Path) -> None:
    service = FakeService()
    with anyio.fail_after(LIMIT_S):
        async with serve_fake(service), edge_process(tmp_path, service.address) as edge:
            url = await edge.url()
            async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
                assert (await client.get("/readyz")).status_code == 200
                made = (await client.post("/v1/predictions", json=BODY)).json()
                async with client.stream("GET", made["urls"]["stream"]) as answer:
                    chunks = answer.aiter_raw()
                    received = await anext(chunks)
                    edge.process.send_signal(signal.SIGTERM)
                    async for chunk in chunks:
                        received += chunk
            assert received.startswith(b":\n") and b"retry: " in received
            assert await edge.process.wait() == 0
            assert not service.requests("CancelPrediction")


async def test_readiness_goes_first_and_all_else_goes_on(tmp_path: Path) -> None:
    service = FakeService(texts=["a"])
    with anyio.fail_after(LIMIT_S):
        async with serve_fake(service), edge_process(tmp_path, service.address, drain_notice="1h") as edge:
            url = await edge.url()
            async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
                assert (await client.get("/readyz")).status_code == 200
                edge.process.send_signal(signal.SIGTERM)
                while (await client.get("/readyz")).status_code == 200:
                    pass
                assert (await client.get("/healthz")).status_code == 200
                made = await client.post("/v1/predictions", json=BODY, headers={"prefer": "wait"})
                assert made.json()["output"] == ["a"]
                edge.process.send_signal(signal.SIGTERM)
            await edge.process.wait()


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    service = FakeService()
    with anyio.fail_after(LIMIT_S):
        async with serve_fake(service), edge_process(tmp_path, service.address, drain_notice="1h") as edge:
            url = await edge.url()
            async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
                made = (await client.post("/v1/predictions", json=BODY)).json()
                async with client.stream("GET", made["urls"]["stream"]) as answer:
                    await anext(answer.aiter_raw())
                    edge.process.send_signal(signal.SIGTERM)
                    while (await client.get("/readyz")).status_code == 200:
                        pass
                    edge.process.send_signal(signal.SIGINT)
                    await edge.process.wait()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"prot": "1"}, "did you mean EDGE_PORT"),
        ({"host": "0.0.0.0"}, "no API tokens"),
        ({"keepalive": "soon"}, "EDGE_KEEPALIVE"),
    ],
)
async def test_a_bad_setting_stops_the_start(tmp_path: Path, settings: dict[str, str], text: str) -> None:
    with anyio.fail_after(LIMIT_S):
        async with edge_process(tmp_path, "127.0.0.1:1", **settings) as edge:
            await edge.until(text)
            assert await edge.process.wait() == 2


async def test_a_stream_url_outlives_a_restart_of_the_edge(tmp_path: Path) -> None:
    service = FakeService(texts=["a", "b"])
    with anyio.fail_after(LIMIT_S):
        async with serve_fake(service):
            async with edge_process(tmp_path, service.address, hold_after_done="0") as edge:
                url = await edge.url()
                async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
                    made = (await client.post("/v1/predictions", json=BODY)).json()
                    first = (await client.get(made["urls"]["stream"])).content
            path = made["urls"]["stream"].removeprefix(url)
            async with edge_process(tmp_path, service.address, hold_after_done="0") as edge:
                url = await edge.url()
                async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
                    assert (await client.get(path)).content == first
