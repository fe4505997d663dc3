"""Owns the response object: whole, or as the events of its stream show it, and the items of its output."""

from collections.abc import Sequence
from typing import assert_never

from edge.openai.bodies import call_id, token_logprobs
from edge.openai.responses_schema import ResponseBody
from edge.openai.tools_schema import ResponseTool
from edge.protocol.answer_blocks import Block, Blocks, CallBlock, TextBlock, read_blocks
from edge.protocol.tool_calls import ToolCallReader
from edge.upstream.answers import Answer
from edge.upstream.events import Accepted, Completed, FinishReason, TokenLogprob, Usage


def response_body(
    accepted: Accepted,
    answer: Answer,
    model: str,
    given: ResponseBody,
    reader: ToolCallReader | None = None,
) -> dict[str, object]:
    """Return the whole answer; `answer` has ended well."""
    assert answer.end is not None, "it has ended"
    blocks = read_blocks(answer.text, reader)
    cut = is_cut(answer.end, reader)
    members = end_members(accepted.prediction_id, blocks, answer.logprobs, answer.end, is_cut=cut)
    return response_object(accepted, model, given, members)


def response_object(
    accepted: Accepted, model: str, given: ResponseBody, members: dict[str, object]
) -> dict[str, object]:
    """Return a response with `members` over what every one has."""
    form = given.format
    return {
        "id": f"resp_{accepted.prediction_id}",
        "object": "response",
        "created_at": int(accepted.time.timestamp()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": given.instructions,
        "max_output_tokens": given.max_output_tokens,
        "metadata": given.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": given.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0 if given.temperature is None else given.temperature,
        "text": {"format": {"type": "text"} if form is None else _form_members(form.type, form.name)},
        "tool_choice": "auto" if given.tool_choice is None else given.tool_choice,
        "tools": [_tool_members(tool) for tool in given.tools or ()],
        "top_logprobs": given.top_logprobs or 0,
        "top_p": 1.0 if given.top_p is None else given.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": given.user,
        **members,
    }


def _form_members(kind: str, name: str | None) -> dict[str, object]:
    if kind == "json_schema":
        return {"type": kind, "name": name or "output", "schema": {}}
    return {"type": kind}


def _tool_members(tool: ResponseTool) -> dict[str, object]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": bool(tool.strict),
    }


def end_members(
    identity: str, blocks: Blocks, logprobs: Sequence[TokenLogprob], end: Completed, *, is_cut: bool
) -> dict[str, object]:
    """Return the members that its end gives a response; only one with a single text has `logprobs`."""
    last = len(blocks.all) - 1
    return {
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": [
            _item(identity, at, block, logprobs, is_cut=is_cut and at == last)
            for at, block in enumerate(blocks.all)
        ],
        "usage": _usage(end.usage),
    }


def is_cut(end: Completed, reader: ToolCallReader | None) -> bool:
    """Return whether the token limit ended the output; `reader` has read all of it."""
    return end.finish_reason is FinishReason.LENGTH and (reader is None or not reader.is_closed)


def _item(
    identity: str, at: int, block: Block, logprobs: Sequence[TokenLogprob], *, is_cut: bool
) -> dict[str, object]:
    match block:
        case TextBlock(text):
            return message_item(identity, at, text, logprobs, is_cut=is_cut)
        case CallBlock():
            return call_item(identity, block)
        case _:
            assert_never(block)


def message_item(
    identity: str,
    at: int,
    text: str | None,
    logprobs: Sequence[TokenLogprob] = (),
    *,
    is_cut: bool = False,
) -> dict[str, object]:
    """Return a message, the output's item `at`; `text` is None at its beginning."""
    return {
        "type": "message",
        "id": f"msg_{identity}_{at}" if at else f"msg_{identity}",
        "status": "in_progress" if text is None else "incomplete" if is_cut else "completed",
        "role": "assistant",
        "content": [] if text is None else [text_part(text, logprobs)],
    }


def call_item(identity: str, call: CallBlock, status: str | None = None) -> dict[str, object]:
    """Return a function call; without a `status` its end is known."""
    return {
        "type": "function_call",
        "id": f"fc_{identity}_{call.index}",
        "call_id": call_id(identity, call.index),
        "name": call.name,
        "arguments": call.arguments,
        "status": status or ("completed" if call.is_whole else "incomplete"),
    }


def text_part(text: str, logprobs: Sequence[TokenLogprob] = ()) -> dict[str, object]:
    """Return a part of text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": token_logprobs(logprobs)}


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
