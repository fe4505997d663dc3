"""Chat messages to a rendered prompt, by the model's own template.

Owns that message content stays content: a special token's text in it is cut out before the
template sees it and put back as a segment of its own, to be tokenised as plain text. A token that
would form across the edge of a content and what the template or another content puts beside it is
cut the same way. The sandbox is `sandbox`; ids are made in `special_ids`.

Differences from Hugging Face's `apply_chat_template`: a message is role and content only, there
are no tools; `strftime_now` exists only if given, so that a prompt does not change overnight; the
role `developer` becomes `system` where the template does not know it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import jinja2

from service.adapters.prompts.sandbox import TemplateRefusal, TemplateSandbox, TemplateTooLarge
from service.adapters.prompts.special_ids import Segment
from service.domain.request import ChatMessage
from service.ports.engine import PromptError

MAX_RENDERED_BYTES = 8 * 1024 * 1024
"""Twice the largest request: what a template adds to messages is small."""
_MAX_REFUSAL = 200


class ChatTemplateError(Exception):
    """The template's source cannot be compiled; the text says where."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """Contents with placeholders, and what each placeholder stands for."""

    contents: tuple[str, ...]
    texts: Mapping[str, str]


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
        """Compile. `special_tokens` are the texts that must not count in message content.

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
        self._tokens = sorted({t for t in special_tokens if t}, key=lambda t: (-len(t), t))
        self._pattern = re.compile("|".join(map(re.escape, self._tokens)) or r"(?!)")
        self._heads = frozenset(t[i:] for t in self._tokens for i in range(1, len(t)))
        self._tails = frozenset(t[:i] for t in self._tokens for i in range(1, len(t)))
        self._longest = max(map(len, self._tokens), default=0)
        self._names = {"bos_token": bos_text, "eos_token": eos_text}
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._knows_developer = "developer" in source

    def render(self, messages: Sequence[ChatMessage]) -> tuple[Segment, ...]:
        """Return the prompt up to where the assistant's turn begins. Raises PromptError."""
        mark = self._free_mark(messages)
        roles = [self._role(message.role) for message in messages]
        contents = [message.content for message in messages]
        cut = self._cut(contents, mark, edges=False)
        rendered = self._run(roles, cut.contents)
        guarded = self._cut(contents, mark, edges=True)
        if len(guarded.texts) != len(cut.texts):
            again = self._run(roles, guarded.contents)
            if self._pattern.findall(again) != self._pattern.findall(rendered):
                cut, rendered = guarded, again
        return _segments(rendered, mark, cut.texts)

    def _role(self, role: str) -> str:
        return "system" if role == "developer" and not self._knows_developer else role

    def _free_mark(self, messages: Sequence[ChatMessage]) -> str:
        """Return a text that stands in no content and not in the template."""
        everything = [self._source, *self._tokens, *(message.content for message in messages)]
        mark = "\ue0f1"
        while any(mark in text for text in everything):
            mark += "\ue0f2\ue0f1"
        return mark

    def _cut(self, contents: Sequence[str], mark: str, *, edges: bool) -> _Cut:
        texts: dict[str, str] = {}

        def placeholder(text: str) -> str:
            name = f"{mark}{len(texts)}{mark}"
            texts[name] = text
            return name

        def replaced(content: str) -> str:
            body = content.strip() if edges else content  # templates trim: the body meets its neighbours
            head, tail = self._edges(body) if edges else (0, 0)
            before, _, after = content.partition(body) if body else (content, "", "")
            middle = body[head : len(body) - tail]
            return "".join(
                (
                    before,
                    placeholder(body[:head]) if head else "",
                    self._pattern.sub(lambda match: placeholder(match.group()), middle),
                    placeholder(body[len(body) - tail :]) if tail else "",
                    after,
                )
            )

        return _Cut(tuple(map(replaced, contents)), texts)

    def _edges(self, body: str) -> tuple[int, int]:
        """Return the lengths of the longest head that ends, and tail that begins, some special token.

        A body from the middle of a token is all head.
        """
        if body and len(body) < self._longest and any(body in token for token in self._tokens):
            return len(body), 0
        reach = min(len(body), self._longest)
        head = next((n for n in range(reach, 0, -1) if body[:n] in self._heads), 0)
        reach = min(len(body) - head, self._longest)
        tail = next((n for n in range(reach, 0, -1) if body[-n:] in self._tails), 0)
        return head, tail

    def _run(self, roles: Sequence[str], contents: Sequence[str]) -> str:
        messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=True)]
        with self._lock:
            try:
                return self._bounded(
                    {
                        **self._names,
                        "messages": messages,
                        "add_generation_prompt": True,
                        "tools": None,
                        "documents": None,
                    }
                )
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


def _segments(rendered: str, mark: str, texts: Mapping[str, str]) -> tuple[Segment, ...]:
    """Split a rendering at its placeholders."""
    if not texts:
        return (Segment(rendered, special=True),)
    found: list[Segment] = []
    for i, part in enumerate(re.split(f"({re.escape(mark)}[0-9]+{re.escape(mark)})", rendered)):
        if part:
            found.append(Segment(texts[part], special=False) if i % 2 else Segment(part, special=True))
    return tuple(found)
