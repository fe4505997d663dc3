"""Plain HTTP callers of the OpenAI and Anthropic APIs, for tests that look at the wire."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.pair import MODEL, Reading


@dataclass(frozen=True)
class Dialect:
    """How one endpoint is asked, and where its answer has what."""

    name: str
    path: str
    extra: dict[str, object]
    takes_prompt: bool = False

    def body(self, prompt: str, **fields: object) -> dict[str, object]:
        """Return a request body."""
        given: dict[str, object] = {"model": MODEL, "max_tokens": 100_000, **self.extra}
        if self.name == "responses":
            del given["max_tokens"]
            given["input"] = prompt
        elif self.takes_prompt:
            given["prompt"] = prompt
        else:
            given["messages"] = [{"role": "user", "content": prompt}]
        return given | fields

    def text(self, reading: Reading) -> str:
        """Return the text that a stream's events carry."""
        return "".join(self._piece(json.loads(e.data)) for e in reading.events if e.data != "[DONE]")

    def whole(self, body: dict[str, Any]) -> str:
        """Return the text of a whole answer."""
        match self.name:
            case "chat":
                return str(body["choices"][0]["message"]["content"])
            case "completions":
                return str(body["choices"][0]["text"])
            case "responses":
                return "".join(part["text"] for item in body["output"] for part in item["content"])
            case _:
                return "".join(block["text"] for block in body["content"])

    def _piece(self, data: dict[str, Any]) -> str:
        match self.name:
            case "chat":
                return "".join(c["delta"].get("content") or "" for c in data.get("choices", ()))
            case "completions":
                return "".join(c["text"] for c in data.get("choices", ()))
            case "responses":
                return str(data["delta"]) if data["type"] == "response.output_text.delta" else ""
            case "messages":
                return str(data["delta"]["text"]) if data["type"] == "content_block_delta" else ""
            case _:
                return str(data.get("token", ""))


CHAT = Dialect("chat", "/v1/chat/completions", {})
COMPLETIONS = Dialect("completions", "/v1/completions", {}, takes_prompt=True)
RESPONSES = Dialect("responses", "/v1/responses", {})
MESSAGES = Dialect("messages", "/v1/messages", {})
GENERATE = Dialect("generate", "/generate", {}, takes_prompt=True)
WITH_WHOLE = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
ALL = (*WITH_WHOLE, GENERATE)


def name_of(dialect: Dialect) -> str:
    """Return a test id."""
    return dialect.name


@asynccontextmanager
async def open_stream(
    http: httpx.AsyncClient,
    base: str,
    dialect: Dialect,
    prompt: str,
    headers: dict[str, str] | None = None,
    **fields: object,
) -> AsyncGenerator[Reading, None]:
    """Ask for a stream."""
    body = dialect.body(prompt, stream=True, **fields)
    async with http.stream("POST", base + dialect.path, json=body, headers=headers) as answer:
        yield Reading(answer)


async def read_stream(
    http: httpx.AsyncClient,
    base: str,
    dialect: Dialect,
    prompt: str,
    headers: dict[str, str] | None = None,
    **fields: object,
) -> Reading:
    """Ask for a stream and read it to its end."""
    async with open_stream(http, base, dialect, prompt, headers, **fields) as reading:
        if reading.status == 200:
            await reading.to_end()
        return reading
