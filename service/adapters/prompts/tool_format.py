"""How a model writes tool calls, found in its chat template's source.

Owns the formats that `tailrace.v1.Model.tool_format` names, and what tells them apart. A template has
no field for it: each family is known by the marks that its template writes around earlier calls. One
that writes them in a way we cannot read (as XML, or with the name outside of the JSON) is none of ours.

Left out: Llama's built-in tools behind `<|python_tag|>`, which need `builtin_tools` in the template.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One family's way."""

    name: str
    opener: str
    """What the model writes before the JSON of a call: the prompt of a forced call ends with it."""
    marks: tuple[str, ...] = ()
    """Texts around calls. The engine must put them out, also where they are control tokens."""
    short_ids: bool = False
    """Its templates take call ids of 9 letters and digits only."""


HERMES = ToolFormat("hermes", "<tool_call>\n", ("<tool_call>", "</tool_call>"))
LLAMA3 = ToolFormat("llama3", "")
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS] [", ("[TOOL_CALLS]",), short_ids=True)

_TOOLS = re.compile(r"\btools\b")
_OTHER_WAYS = ("<function=", "<arg_key>", "<parameter=", "<invoke", "[ARGS]", "[CALL_ID]")
"""Qwen3-Coder, GLM, MiniMax, later Mistral: the marks are alike, what stands between them is not."""


def find_tool_format(source: str) -> ToolFormat | None:
    """Return the format of the template with this source; None if it has none that is known."""
    if not _TOOLS.search(source) or any(way in source for way in _OTHER_WAYS):
        return None
    if "<tool_call>" in source and "arguments" in source:
        return HERMES
    if "[TOOL_CALLS]" in source:
        return MISTRAL
    if "<|start_header_id|>" in source and '"parameters"' in source:
        return LLAMA3
    return None
