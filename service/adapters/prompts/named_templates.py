"""A model's two chat templates as one: some models have one for chats with tools beside the default.

Hugging Face names it `tool_use` and takes it when there are tools; so does this.
"""

from __future__ import annotations

TOOL_USE = "tool_use"


def joined(default: str, tool_use: str) -> str:
    """Return one source that does what the two do; either may be empty."""
    if not (default and tool_use):
        return default or tool_use
    return f"{{% if tools %}}{_body(tool_use)}{{% else %}}{_body(default)}{{% endif %}}"


def _body(source: str) -> str:
    """Return a source without the line break at its end, which Jinja drops only there."""
    return source.removesuffix("\n")
