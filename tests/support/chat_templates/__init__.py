"""Chat templates after those of known models: their structure, with other words where words are free.

They are read as files: `source("qwen2_5")`.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
HERMES_FILE = FOLDER.parents[2] / "deploy" / "chat_templates" / "hermes.jinja"
FORMATS = {
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "hermes_2_pro": "hermes",
    "llama_3_1": "llama3",
    "mistral_v0_3": "mistral",
    "content_is_none": "hermes",
    "smollm2": "",
    "qwen3_coder": "",
    "deaf": "",
}
"""The templates, and how each writes calls."""


def source(name: str) -> str:
    """Return a template's source; `hermes` is the one that we ship."""
    path = HERMES_FILE if name == "hermes" else FOLDER / f"{name}.jinja"
    return path.read_text(encoding="utf-8")
