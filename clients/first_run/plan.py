"""What is going to run: addresses, model and the environment of the processes, from our own."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

DEFAULT_PROMPT = "Explain in three sentences what a river is."
DEFAULT_SERVICE_PORT = 50051
DEFAULT_EDGE_PORT = 8080
DEFAULT_MODEL = "local/smollm2-135m-instruct"
DRAIN = "3s"
"""On a laptop nobody waits 25 s after Ctrl-C; what still runs then goes on at the next start."""


class PlanError(Exception):
    """The run cannot start; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything decided before the first process starts."""

    service_host: str
    service_port: int
    edge_host: str
    edge_port: int
    model: str
    """The name it is served under."""
    model_path: str
    engine: str
    prompt: str
    once: bool
    logs: Path
    """Folder of the processes' logs."""
    env: Mapping[str, str]
    """For the processes."""

    @property
    def base(self) -> str:
        """The edge's own URL."""
        return f"http://{_url_host(self.edge_host)}:{self.edge_port}"

    @property
    def service_address(self) -> str:
        """Where gRPC callers connect."""
        return f"{_url_host(self.service_host)}:{self.service_port}"

    @property
    def needs_model(self) -> bool:
        """Whether the demo model must be there before the start."""
        return not self.model_path and self.engine != "scripted"

    @property
    def model_shown(self) -> str:
        """The model for people."""
        if self.engine == "scripted":
            return f"{self.model} (scripted: fixed text, no model)"
        return f"{self.model} ({self.model_path})"

    @property
    def first_input(self) -> dict[str, Any]:
        """The first prediction's input."""
        return {"prompt": self.prompt, "max_tokens": 128, "temperature": 0}

    def with_model(self, path: str) -> Plan:
        """Return the plan with the model's file filled in."""
        return replace(self, model_path=path, env={**self.env, "SERVICE_MODEL_PATH": path})


def make_plan(environ: Mapping[str, str]) -> Plan:
    """Read our variables. Raises PlanError for one that makes no sense."""
    env = {k: v for k, v in environ.items() if k not in ("ENGINE", "MODEL", "PROMPT", "ONCE", "LOG_DIR")}
    engine = environ.get("ENGINE") or environ.get("SERVICE_ENGINE", "llama_cpp")
    env["SERVICE_ENGINE"] = engine
    path = environ.get("MODEL") or environ.get("SERVICE_MODEL_PATH", "")
    if path:
        if not Path(path).exists():
            raise PlanError(f"there is no model at {path}")
        env["SERVICE_MODEL_PATH"] = path = str(Path(path).resolve())
    if engine == "exllamav2":
        _check_exllamav2(path)
    service_host = environ.get("SERVICE_HOST", "127.0.0.1")
    if service_host.startswith("unix:"):
        raise PlanError(
            "`make run` needs a TCP address in SERVICE_HOST; for a Unix socket use run-service and run-edge"
        )
    edge_host = environ.get("EDGE_HOST", "127.0.0.1")
    service_port = _port(environ, "SERVICE_PORT", DEFAULT_SERVICE_PORT, service_host)
    edge_port = _port(environ, "EDGE_PORT", DEFAULT_EDGE_PORT, edge_host)
    env["SERVICE_PORT"] = str(service_port)
    env["EDGE_PORT"] = str(edge_port)
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", os.defpath)])
    env.setdefault("SERVICE_DRAIN", DRAIN)
    env.setdefault("EDGE_LOG_FORMAT", "json")
    reachable = _reachable(service_host)
    env.setdefault("EDGE_SERVICE_ADDRESS", f"{_url_host(reachable)}:{service_port}")
    return Plan(
        service_host=reachable,
        service_port=service_port,
        edge_host=_reachable(edge_host),
        edge_port=edge_port,
        model=environ.get("SERVICE_MODEL_NAME", DEFAULT_MODEL),
        model_path=path,
        engine=engine,
        prompt=environ.get("PROMPT") or DEFAULT_PROMPT,
        once=environ.get("ONCE", "0") not in ("", "0"),
        logs=Path(environ.get("LOG_DIR") or "var/log"),
        env=env,
    )


def _check_exllamav2(path: str) -> None:
    if importlib.util.find_spec("exllamav2") is None or importlib.util.find_spec("torch") is None:
        raise PlanError("exllamav2 is not installed: run `make setup-exllamav2` (docs/engines/exllamav2.md)")
    if not Path(path or "/dev/null").is_dir():
        raise PlanError("exllamav2 needs a model's folder: make run ENGINE=exllamav2 MODEL=/path/to/folder")


def _port(environ: Mapping[str, str], name: str, default: int, host: str) -> int:
    text = environ.get(name, str(default))
    if not text.isdecimal() or int(text) > 65535:
        raise PlanError(f"{name} must be a port, 0 to 65535, and is {text!r}")
    return int(text) or _free_port(_reachable(host))


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _reachable(host: str) -> str:
    """Return an address to connect to for one to listen on."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
