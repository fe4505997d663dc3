"""Where the tests' model is: TAILRACE_TEST_MODEL, or the demo model, fetched on first use."""

from __future__ import annotations

import os
from pathlib import Path

from service.model_fetch import fetch


def demo_model_path() -> Path:
    """Return the GGUF file's path. Raises FetchError without a network."""
    given = os.environ.get("TAILRACE_TEST_MODEL")
    return Path(given) if given else fetch(Path(__file__).parents[3] / "var" / "models")
