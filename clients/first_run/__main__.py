"""`python -m clients.first_run`: the command behind `make run`.

Reads PROMPT (what to ask first), MODEL (a GGUF file instead of the demo model),
ENGINE (exllamav2, with MODEL a folder), ONCE (1: stop after
the first prediction, with exit code 0 if it worked), LOG_DIR, and every SERVICE_ and EDGE_ setting.
Exit codes: 0 stopped by Ctrl-C or SIGTERM once serving, or ONCE done; 1 something failed; 2 the
settings cannot be used; 130 and 143 interrupted before it served.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from clients.first_run import prediction
from clients.first_run.console import Console
from clients.first_run.next_steps import next_steps
from clients.first_run.plan import Plan, PlanError, make_plan
from clients.first_run.prediction import FirstRunError
from clients.first_run.processes import LogFiles, Processes

ROOT = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Story:
    """What happens beside the processes, on a thread of its own."""

    plan: Plan
    console: Console
    logs: LogFiles
    stopping: threading.Event = field(default_factory=threading.Event)
    serving: bool = False
    failure: str = ""

    def tell(self) -> None:
        """Wait for readiness, make the first prediction, say what to do next."""
        try:
            if not self._wait():
                return
            self.serving = True
            self._first_prediction()
        except (FirstRunError, OSError) as error:
            if not self.stopping.is_set():
                self.failure = str(error)
        if self.failure or self.stopping.is_set() or self.plan.once:
            return
        self.console.plain(next_steps(self.plan))

    def _wait(self) -> bool:
        started = time.monotonic()
        told = False

        def still(missing: str) -> None:
            nonlocal told
            if missing and not told:
                told = True
                self.console.step("loading", "the edge is up, the service loads the model")
            waited = time.monotonic() - started
            self.console.passing(f"{missing or 'starting'} ({waited:.0f} s)")

        if not prediction.wait_until_ready(self.plan.base, self.stopping, still):
            return False
        self.console.step("ready", f"after {time.monotonic() - started:.1f} s")
        return True

    def _first_prediction(self) -> None:
        plan, console = self.plan, self.console
        created = prediction.create(plan.base, plan.model, plan.first_input)
        console.title("First prediction")
        console.step("create", f"POST {plan.base}/v1/models/{plan.model}/predictions")
        console.step("stream", f"GET {created['urls']['stream']}")
        console.step("prompt", plan.prompt)
        console.plain()
        started = time.monotonic()
        first = 0.0
        with console.streaming():
            for text in prediction.output(created["urls"]["stream"]):
                first = first or time.monotonic() - started
                console.token(text)
        took = time.monotonic() - started
        console.plain()
        console.step("succeeded", f"first text after {first:.2f} s, all of it after {took:.1f} s")


def fetch_model(console: Console) -> str:
    """Return the demo model's path, fetching it with a progress bar if it is not there."""
    done = subprocess.run(
        [sys.executable, "-m", "service.model_fetch"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise PlanError(
            "the demo model could not be fetched; see above. With a model of your own: make run MODEL=/path"
        )
    return lines[-1]


def check_free(host: str, port: int, variable: str) -> None:
    """Raise PlanError where another program listens on the port."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PlanError(
                f"port {port} on {host} is not free ({error.strerror}): stop what listens there, "
                f"or choose another, e.g. {variable}={port + 1000} make run"
            ) from error


def serve(plan: Plan, console: Console) -> int:
    """Run everything until it is stopped; return the exit code."""
    # The story starts when honcho has forked its children, so that no fork copies a busy thread.
    with LogFiles(plan.logs, console, lambda: thread.start()) as logs:
        story = Story(plan, console, logs)
        processes = Processes(ROOT / "Procfile", logs, plan.env)
        console.title("Tailrace")
        console.step("model", plan.model_shown)
        console.step("service", f"{plan.service_address}, log in {logs.path('service')}")
        console.step("edge", f"{plan.base}, log in {logs.path('edge')}")

        def tell() -> None:
            try:
                story.tell()
            finally:
                if plan.once or story.failure:
                    processes.stop()

        thread = threading.Thread(target=tell, name="first-prediction", daemon=True)
        processes.run()
        story.stopping.set()
        thread.join(timeout=prediction.ANSWER_S)
        return verdict(story, processes, console, once=plan.once)


def verdict(story: Story, processes: Processes, console: Console, *, once: bool) -> int:
    """Say how it ended, and return the exit code."""
    if died := processes.died():
        console.title("Failed")
        console.plain("  " + died)
        return 1
    if story.failure:
        console.title("Failed")
        console.plain(f"  {story.failure}\n  The logs are in {story.logs.folder}/.")
        return 1
    code = processes.signalled
    console.plain("\nStopped.")
    if code is not None and (once or not story.serving):
        return code
    return 0


def on_sigterm(signum: int, frame: FrameType | None) -> None:
    """End at once: nothing is running yet. honcho takes the signal over later."""
    raise SystemExit(128 + signum)


def main() -> int:
    """Run the command."""
    console = Console()
    signal.signal(signal.SIGTERM, on_sigterm)
    os.chdir(ROOT)
    try:
        plan = make_plan(os.environ)
        check_free(plan.service_host, plan.service_port, "SERVICE_PORT")
        check_free(plan.edge_host, plan.edge_port, "EDGE_PORT")
        if plan.needs_model:
            plan = plan.with_model(fetch_model(console))
        return serve(plan, console)
    except PlanError as error:
        console.plain(f"Cannot start: {error}")
        return 2
    except KeyboardInterrupt:
        console.plain("\nStopped.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
