"""`python -m benchmarks.llama_server`: llama.cpp's own HTTP server, with the same settings as ours.

It is opened by the service's own adapter code, so that model file, slots, context, batch sizes and
threads cannot differ. What generates is the same library; only what stands before it is not.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from pathlib import Path

from service.adapters.engines.llama_cpp import library
from service.adapters.engines.llama_cpp.settings import LlamaCppSettings


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="benchmarks.llama_server", description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--context-tokens", type=int, required=True, help="of one slot")
    parser.add_argument("--batch-tokens", type=int, required=True)
    arguments = parser.parse_args()
    settings = LlamaCppSettings(
        model_path=arguments.model,
        slots=arguments.slots,
        context_tokens=arguments.context_tokens,
        batch_tokens=arguments.batch_tokens,
    )
    key = secrets.token_urlsafe(16)
    server, address = library.start(settings, key)
    sys.stdout.write(json.dumps({"url": address, "headers": {"authorization": f"Bearer {key}"}}) + "\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()
    del server


if __name__ == "__main__":
    main()
