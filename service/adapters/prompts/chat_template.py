"""Chat messages to a rendered prompt, by the model's own template.

Owns that a caller's text stays text: a special token in it (see `placeholders`) reaches the tokenizer
as plain text, and so does one that would form across the edge of a text and what the template or
another text puts beside it. This holds for contents, tools, calls and their ids, keys of JSON included.
The sandbox is `sandbox`; ids are made in `special_ids`.

Differences from Hugging Face's `apply_chat_template`: `strftime_now` exists only if given, so that a
prompt does not change overnight; the role `developer` becomes `system` where the template does not
know it; call ids are shortened where the template takes short ones only; an unfinished last message
must come out to the letter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import jinja2

from service.adapters.prompts.placeholders import Placeholders, SpecialTokens, free_mark
from service.adapters.prompts.sandbox import TemplateRefusal, TemplateSandbox, TemplateTooLarge
from service.adapters.prompts.special_ids import Segment
from service.adapters.prompts.template_values import TemplateHabits, message_values, tool_values
from service.adapters.prompts.tool_format import ToolFormat, find_tool_format
from service.domain.chat import ChatMessage, Tool, ToolCall
from service.ports.engine import PromptError

MAX_RENDERED_BYTES = 8 * 1024 * 1024
"""Twice the largest request: what a template adds to messages is small."""
_MAX_REFUSAL = 200
_NOT_OPEN = "the model's chat template does not write the last message as it stands, so it cannot go on"
_PROBE_TOOL = Tool("tailrace_probe", "d", '{"type": "object", "properties": {}}')
_PROBE_CALL = ToolCall("tailrace1", "tailrace_called")
_PROBE = (
    ChatMessage("user", "q"),
    ChatMessage("assistant", "", (_PROBE_CALL,)),
    ChatMessage("tool", "r", (), _PROBE_CALL.id),
    ChatMessage("assistant", "a"),
    ChatMessage("user", "q"),
)


class ChatTemplateError(Exception):
    """The template's source cannot be compiled; the text says where."""


class _Noted:
    """A `Clean` that changes nothing and remembers what it saw."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def text(self, content: str) -> str:
        self.texts.append(content)
        return content

    word = text


class ChatTemplate:
    """One model's template, compiled once. Thread-safe."""

    def __init__(
        self,
        source: str,
        bos_text: str = "",
        eos_text: str = "",
        special_tokens: Collection[str] = (),
        *,
        strftime_now: Callable[[str], str] | None = None,
        max_bytes: int = MAX_RENDERED_BYTES,
    ) -> None:
        """Compile. `special_tokens` are the texts that must not count in what a caller writes.

        Raises ChatTemplateError.
        """
        self._sandbox = TemplateSandbox(max_bytes)
        if strftime_now is not None:
            self._sandbox.globals["strftime_now"] = strftime_now
        try:
            self._template = self._sandbox.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"the chat template's line {error.lineno} is not valid Jinja") from error
        self._source = source
        self._tokens = SpecialTokens(special_tokens)
        self._names = {"bos_token": bos_text, "eos_token": eos_text}
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._habits = TemplateHabits(knows_developer="developer" in source)
        self.tool_format: ToolFormat | None = None
        """How calls are written; None if the template cannot render tools, or in no way we know."""
        self._learn_tools()

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Tool] = (),
        *,
        call: bool = False,
        unfinished: bool = False,
    ) -> tuple[Segment, ...]:
        """Return the prompt up to where the assistant goes on.

        With `call` it ends where the JSON of a call begins; with `unfinished`, where the content of
        the last message ends. Raises PromptError.
        """
        mark = self._free_mark(messages, tools)
        last = messages[-1].content if unfinished else None
        plain, guarded = (Placeholders(self._tokens, mark, edges=edges) for edges in (False, True))
        values, with_edges = (self._values(messages, tools, p, mark, last) for p in (plain, guarded))
        used, rendered = plain, self._run(values, mark, last)
        if with_edges != values:
            again = self._run(with_edges, mark, last)
            if self._tokens.pattern.findall(again) != self._tokens.pattern.findall(rendered):
                used, rendered = guarded, again
        if call and self.tool_format is not None:
            rendered += self.tool_format.opener
        segments = used.segments(rendered)
        if last is not None and not "".join(segment.text for segment in segments).endswith(last):
            raise PromptError(_NOT_OPEN)
        return segments

    def _values(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Tool],
        placeholders: Placeholders,
        mark: str,
        last: str | None,
    ) -> dict[str, object]:
        """Return what the template is given; `last` is the content of an unfinished last message."""
        turns = message_values(messages, placeholders, self._habits)
        if last is not None:
            rest = last.lstrip()
            space = _space(mark) if rest != last else ""
            turns[-1]["content"] = space + placeholders.text(rest) + _end(mark)
        return {
            **self._names,
            "messages": turns,
            "add_generation_prompt": last is None,
            "tools": tool_values(tools, placeholders),
            "documents": None,
        }

    def _free_mark(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> str:
        """Return a mark that stands in no text of the caller and not in the template."""
        noted = _Noted()
        message_values(messages, noted, self._habits)
        tool_values(tools, noted)
        return free_mark([self._source, *self._tokens.all, *noted.texts])

    def _run(self, values: Mapping[str, object], mark: str, last: str | None) -> str:
        """Return the rendering; of an unfinished last message, up to the end of its content."""
        with self._lock:
            try:
                rendered = self._bounded(values)
            except TemplateTooLarge:
                raise PromptError(
                    "the model's chat template makes more text of these messages than is allowed"
                ) from None
            except TemplateRefusal as refusal:
                text = " ".join(str(refusal).split())[:_MAX_REFUSAL]
                raise PromptError(f"the model's chat template refuses these messages: {text}") from None
            except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError,
                    AttributeError, MemoryError) as error:  # fmt: skip
                raise PromptError("the model's chat template fails on these messages") from error
        return rendered if last is None else _cut_open(rendered, mark, last)

    def _bounded(self, names: Mapping[str, object]) -> str:
        self._sandbox.begin()
        parts: list[str] = []
        size = 0
        for part in self._template.generate(names):
            size += len(part)
            if size > self._max_bytes:
                raise TemplateTooLarge
            parts.append(part)
        return "".join(parts)

    def _learn_tools(self) -> None:
        """Find the format of calls, and that the template really shows tools and earlier calls."""
        found = find_tool_format(self._source)
        if found is None:
            return
        habits = replace(self._habits, short_ids=found.short_ids)
        for beside in ("", None):
            self._habits = replace(habits, content_beside_calls=beside)
            try:
                text = "".join(segment.text for segment in self.render(_PROBE, (_PROBE_TOOL,)))
            except PromptError:
                continue
            if _PROBE_TOOL.name in text and _PROBE_CALL.name in text:
                self.tool_format = found
                return
        self._habits = replace(habits, content_beside_calls="")


def _end(mark: str) -> str:
    return f"{mark}end{mark}"


def _space(mark: str) -> str:
    return f"{mark}space{mark}"


def _cut_open(rendered: str, mark: str, last: str) -> str:
    """Return what stands before the end of the content, with the blanks that it begins with."""
    before, *after = rendered.split(_end(mark))
    if len(after) != 1:
        raise PromptError(_NOT_OPEN)
    return before.replace(_space(mark), last[: len(last) - len(last.lstrip())])
