"""The rules of the wire that official clients need, on streams of every kind."""

from __future__ import annotations

import anyio
import pytest

from tests.e2e.test_tools import TOOLS, block
from tests.support.dialects import CHAT, MESSAGES, Dialect, name_of, open_stream, read_stream
from tests.support.pair import LIMIT_S, Pair, Reading, numbered, script
from tests.support.wire_rules import check_chat, check_message

UNICODE = ["한글", "🙂", "x\u2028y", " \n", "\r\n", "  end"]
KINDS = {
    "ideal": (script(pieces=UNICODE, delay_ms=2), {}, "".join(UNICODE)),
    "empty": (script(pieces=[]), {}, ""),
    "long": (numbered(400)[0], {}, "".join(f"{n} " for n in range(400))),
    "limit": (numbered(50)[0], {"max_tokens": 20}, "".join(f"{n} " for n in range(20))),
    "silence": (script(pieces=["a ", "b"], first_delay_ms=1200, delay_ms=[0, 600]), {}, "a b"),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


async def stream(pair: Pair, dialect: Dialect, prompt: str, **fields: object) -> Reading:
    with anyio.fail_after(LIMIT_S):
        return await read_stream(pair.http, pair.edge.url, dialect, prompt, **fields)


@each_kind
async def test_a_chat_stream_keeps_the_rules(pair: Pair, kind: str) -> None:
    prompt, fields, text = KINDS[kind]
    assert check_chat(await stream(pair, CHAT, prompt, **fields)).get(0, "") == text
    counted = await stream(pair, CHAT, prompt, stream_options={"include_usage": True}, **fields)
    assert check_chat(counted, usage=True).get(0, "") == text


async def test_several_choices_keep_the_rules(pair: Pair) -> None:
    reading = await stream(
        pair, CHAT, numbered(30, delay_ms=1)[0], n=3, stream_options={"include_usage": True}
    )
    texts = check_chat(reading, choices=3, usage=True)
    assert texts == dict.fromkeys(range(3), "".join(f"{n} " for n in range(30)))


async def test_log_probabilities_and_stop_strings_keep_the_rules(pair: Pair) -> None:
    reading = await stream(pair, CHAT, script(pieces=["ABC", "DEF", "G"]), stop=["EFG"], logprobs=True)
    assert check_chat(reading) == {0: "ABCD"}


@each_kind
async def test_a_message_stream_keeps_the_rules(pair: Pair, kind: str) -> None:
    prompt, fields, text = KINDS[kind]
    assert check_message(await stream(pair, MESSAGES, prompt, **fields)) == text


async def test_a_stop_sequence_keeps_the_rules(pair: Pair) -> None:
    reading = await stream(pair, MESSAGES, script(pieces=["ABC", "DEF", "G"]), stop_sequences=["EFG"])
    assert check_message(reading) == "ABCD"


@pytest.mark.parametrize("calls", [1, 2, 3])
async def test_tool_calls_keep_the_rules(pair: Pair, calls: int) -> None:
    said = "So. " + "\n".join(block(city=f"c{n}") for n in range(calls)) + "\nDone."
    prompt = script(pieces=list(said))
    reading = await stream(pair, CHAT, prompt, tools=TOOLS["chat"], stream_options={"include_usage": True})
    assert check_chat(reading, usage=True) == {0: "So.\nDone."}
    assert check_message(await stream(pair, MESSAGES, prompt, tools=TOOLS["messages"])) == "So.Done."


@pytest.mark.parametrize("dialect", [CHAT, MESSAGES], ids=name_of)
async def test_a_stream_is_closed_at_once_after_its_end(pair: Pair, dialect: Dialect) -> None:
    """A client that waits for the close to reuse its connection gives up after 0.1 s."""
    with anyio.fail_after(LIMIT_S):
        async with open_stream(pair.http, pair.edge.url, dialect, numbered(3)[0]) as reading:
            await reading.to_end()
        assert reading.raw.endswith(
            b"data: [DONE]\n\n" if dialect is CHAT else b'{"type":"message_stop"}\n\n'
        )
