"""What every stream of the OpenAI and Anthropic APIs keeps, whatever it says.

Each rule is one whose breach some official client was seen to stumble over (a missing role, a lost
index, an id given twice); the functions raise AssertionError with the rule that is broken.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from tests.support.pair import Reading

FINISHES = {"stop", "length", "tool_calls"}
MESSAGE_EVENTS = {
    "message_start",
    "ping",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "error",
}
STOP_REASONS = {"end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"}


def check_frames(reading: Reading) -> None:
    """Check what holds for both APIs: no ids, no retry, comments for silence, LF only, no byte order mark."""
    assert reading.headers["content-type"].startswith("text/event-stream")
    raw = reading.raw
    assert b"\r" not in raw and not raw.startswith(b"\xef\xbb\xbf"), "LF only, no byte order mark"
    assert raw.endswith(b"\n\n"), "the last frame is whole"
    for line in raw.decode().split("\n"):
        assert line == "" or line.startswith((":", "data: ", "event: ")), f"{line[:40]!r} is no line of ours"


def check_chat(reading: Reading, *, choices: int = 1, usage: bool = False) -> dict[int, str]:
    """Check a chat stream that succeeded; return each choice's text."""
    check_frames(reading)
    assert all(event.event in (None, "", "message") for event in reading.events), "no named events"
    *frames, done = reading.events
    assert done.data == "[DONE]" and all(frame.data != "[DONE]" for frame in frames), "[DONE] once, last"
    chunks: list[dict[str, Any]] = [json.loads(frame.data) for frame in frames]
    assert len({(c["id"], c["object"], c["created"], c["model"]) for c in chunks}) == 1, "one head"
    assert chunks[0]["object"] == "chat.completion.chunk" and type(chunks[0]["created"]) is int
    if usage:
        last = chunks.pop()
        assert last["choices"] == [] and last["usage"]["total_tokens"] == (
            last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
        )
    assert all(chunk["choices"] for chunk in chunks), "`choices` is never empty but beside the usage"
    assert all(chunk.get("usage") is None for chunk in chunks)
    texts: dict[int, str] = defaultdict(str)
    roles: list[int] = []
    ended: set[int] = set()
    tools: dict[tuple[int, int], str] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        index, delta = choice["index"], choice["delta"]
        assert index not in ended, "nothing follows a finish"
        if "role" in delta:
            assert index not in roles and delta["role"] == "assistant", "the role once a choice"
            roles.append(index)
        assert index in roles, "the role comes first"
        texts[index] += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            _check_tool_delta(call, index, tools)
        if choice["finish_reason"] is not None:
            assert choice["finish_reason"] in FINISHES and delta == {}, "a finish chunk says nothing else"
            has_calls = any(of == index for of, _ in tools)
            assert (choice["finish_reason"] == "tool_calls") <= has_calls
            ended.add(index)
    assert roles == list(range(choices)), "choice 0 first"
    assert ended == set(range(choices)), "each choice ends"
    return dict(texts)


def _check_tool_delta(call: dict[str, Any], choice: int, seen: dict[tuple[int, int], str]) -> None:
    place = (choice, call["index"])
    if place in seen:
        assert "id" not in call and "name" not in call["function"], "id and name once"
        assert call["function"].keys() == {"arguments"}
        return
    count = sum(of == choice for of, _ in seen)
    assert call["index"] == count, "indexes from 0, without a hole"
    assert call["id"] and call["id"] not in seen.values() and call["type"] == "function"
    assert call["function"]["name"] and call["function"]["arguments"] == ""
    seen[place] = call["id"]


def check_message(reading: Reading) -> str:
    """Check a message's stream that succeeded; return its text."""
    check_frames(reading)
    events = [(event.event, json.loads(event.data)) for event in reading.events]
    assert all(name == data["type"] and name in MESSAGE_EVENTS for name, data in events), "each is named"
    said = [(name, data) for name, data in events if name != "ping"]
    (first, start), *middle, (_, delta), (last, _) = said
    assert events[0][0] == first == "message_start" and last == "message_stop"
    message = start["message"]
    assert message["content"] == [] and message["usage"].keys() >= {"input_tokens", "output_tokens"}
    assert delta["type"] == "message_delta" and delta["usage"]["output_tokens"] >= 0
    assert delta["delta"]["stop_reason"] in STOP_REASONS
    assert (delta["delta"]["stop_sequence"] is not None) == (delta["delta"]["stop_reason"] == "stop_sequence")
    text, open_block, blocks = "", None, 0
    for name, data in middle:
        assert data["index"] == (blocks if name == "content_block_start" else blocks - 1), "blocks in order"
        if name == "content_block_start":
            assert open_block is None, "one block at a time"
            open_block = data["content_block"]
            blocks += 1
            whole = open_block["type"] == "text" and open_block["text"] == ""
            assert whole or (open_block["id"] and open_block["name"] and open_block["input"] == {})
        elif name == "content_block_delta":
            assert open_block is not None, "a delta belongs to a block"
            kind = {"text": "text_delta", "tool_use": "input_json_delta"}[open_block["type"]]
            assert data["delta"]["type"] == kind
            text += data["delta"].get("text", "")
        else:
            assert name == "content_block_stop" and open_block is not None
            open_block = None
    assert open_block is None, "each block is closed"
    return text
