"""Owns the load tool's run: its command and environment, and the text that its prompts are cut from.

The tool is llama-benchy, made for any server of OpenAI's API. It gets a tokenizer made of the model's own
vocabulary and a text over loopback, so that it needs no network. It streams, asks for the usage, and sends
rounds of so many requests at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from benchmarks.figures import Findings
from benchmarks.load_plan import ROOT, LoadFailed
from benchmarks.load_test.report import Asked, findings_of
from benchmarks.load_test.tokenizer import write_tokenizer

ENVIRONMENT = ROOT / ".venv-load"
TEXT = ROOT / "LICENSE"
"""What prompts are cut from: prose that every checkout has."""

TIMEOUT_S = 240


def is_installed() -> bool:
    """Return whether the tool is there."""
    return (ENVIRONMENT / ".installed").exists()


async def run_tool(url: str, model_name: str, model: Path, asked: Asked) -> Findings:
    """Load the edge at `url`; `model` is the GGUF file behind `model_name`. Raises LoadFailed."""
    with TemporaryDirectory(prefix="tailrace-load-") as name, serving(TEXT) as text_url:
        folder = Path(name)
        write_tokenizer(model, folder)
        command = [
            str(ENVIRONMENT / "bin" / "llama-benchy"), "--base-url", f"{url}/v1", "--api-key", "unused",
            "--model", model_name, "--tokenizer", name, "--book-url", text_url,
            "--pp", str(asked.input_tokens), "--tg", str(asked.output_tokens), "--no-cache",
            "--runs", str(asked.requests // asked.concurrency), "--concurrency", str(asked.concurrency),
            "--extra-body", "ignore_eos=true",  # so that every answer has its full length
            # A small model that draws its tokens need not know the capital that this would ask for.
            "--skip-coherence",
            "--format", "json", "--save-result", f"{name}/result.json",
            "--emit-progress", f"{name}/events.jsonl",
        ]  # fmt: skip
        with anyio.move_on_after(TIMEOUT_S):
            done = await anyio.run_process(command, cwd=name, env=environment(folder), check=False)
            told = (done.stdout + done.stderr).decode(errors="replace")[-2000:]
            result, events = folder / "result.json", folder / "events.jsonl"
            if done.returncode or not result.exists() or not events.exists():
                raise LoadFailed(f"the load tool ended with {done.returncode}:\n{told}")
            return findings_of(asked, events.read_text(), result.read_text())
        raise LoadFailed(f"the load tool was not done after {TIMEOUT_S} s")


def environment(folder: Path) -> dict[str, str]:
    """Return the tool's environment: a home of its own, no proxy, and no hub."""
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return {**kept, "HOME": str(folder), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@contextmanager
def serving(path: Path) -> Generator[str, None, None]:
    """Serve a text at the URL that is given, on loopback."""
    body = path.read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/plain; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/text"
        finally:
            server.shutdown()
            thread.join()
