"""Official clients as a program: a JSON line in says what to ask, a JSON line out what came.

Runs with the interpreter of `.venv-sdks`, and knows nothing of the service. `call` is `stream`, `whole`
or `helper` (the SDK's accumulating stream); what came is told in one form for all clients: `text`,
`finish`, `usage` as [input, output], `extra`, or `error`.
"""

import asyncio
import json
import sys

sys.path[:0] = sys.argv[1:]  # an older SDK goes before the newer one

import anthropic  # noqa: E402 - found by the path above
from tool_asks import ASKS  # noqa: E402 - beside this file

REPORT = {"text": "", "finish": None, "usage": None, "extra": None, "error": None, "requests": 0}


async def openai_chat(sdk, ask, report):
    client = sdk.AsyncOpenAI(base_url=f"{ask['base']}/v1", api_key="k", max_retries=ask.get("retries", 0))
    given = {
        "model": ask["model"],
        "messages": [{"role": "user", "content": ask["prompt"]}],
        **ask["options"],
    }
    if ask["call"] == "whole":
        answer = await client.chat.completions.create(**given)
        report["extra"] = [c.model_dump() for c in answer.choices]
        report["text"] = answer.choices[0].message.content
        report["finish"] = answer.choices[0].finish_reason
        report["usage"] = [answer.usage.prompt_tokens, answer.usage.completion_tokens]
        report["id"] = answer._request_id
    elif ask["call"] == "parse":
        answer = await client.chat.completions.parse(**given)
        report["text"], report["extra"] = answer.choices[0].message.content, answer.choices[0].message.refusal
    elif ask["call"] == "helper":
        async with client.chat.completions.stream(**given) as stream:
            async for _ in stream:
                pass
            answer = await stream.get_final_completion()
        report["extra"] = [c.model_dump(exclude={"message": {"parsed"}}) for c in answer.choices]
        report["text"] = answer.choices[0].message.content
        report["finish"] = answer.choices[0].finish_reason
    else:
        options = {"include_usage": True}
        async for chunk in await client.chat.completions.create(stream=True, stream_options=options, **given):
            for choice in chunk.choices:
                report["text"] += choice.delta.content or ""
                report["finish"] = choice.finish_reason or report["finish"]
                report["extra"] = (report["extra"] or []) + [choice.index]
            if chunk.usage:
                report["usage"] = [chunk.usage.prompt_tokens, chunk.usage.completion_tokens]


async def openai_responses(sdk, ask, report):
    client = sdk.AsyncOpenAI(base_url=f"{ask['base']}/v1", api_key="k", max_retries=ask.get("retries", 0))
    given = {"model": ask["model"], "input": ask["prompt"], **ask["options"]}
    deltas = []
    if ask["call"] == "whole":
        answer = await client.responses.create(**given)
    else:
        async with client.responses.stream(**given) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    report["text"] += event.delta
                    deltas += [entry.model_dump() for entry in event.logprobs]
                elif event.type in ("response.completed", "response.incomplete"):
                    answer = event.response
    assert answer.output_text == report["text"] or ask["call"] == "whole"
    report["text"], report["finish"] = answer.output_text, answer.status
    entries = [e.model_dump() for item in answer.output for part in item.content for e in part.logprobs]
    report["extra"] = [entries, deltas]
    report["usage"] = [answer.usage.input_tokens, answer.usage.output_tokens]


async def openai_completions(sdk, ask, report):
    client = sdk.AsyncOpenAI(base_url=f"{ask['base']}/openai/v1", api_key="k", max_retries=0)
    given = {"model": ask["model"], "prompt": ask["prompt"], **ask["options"]}
    if ask["call"] == "whole":
        answer = await client.completions.create(**given)
        report["text"], report["finish"] = answer.choices[0].text, answer.choices[0].finish_reason
        report["usage"] = [answer.usage.prompt_tokens, answer.usage.completion_tokens]
        report["extra"] = [c.model_dump() for c in answer.choices]
        return
    async for chunk in await client.completions.create(stream=True, **given):
        report["text"] += chunk.choices[0].text
        report["finish"] = chunk.choices[0].finish_reason or report["finish"]


async def langchain(sdk, ask, report):
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        base_url=f"{ask['base']}/v1",
        api_key="k",
        model=ask["model"],
        max_retries=ask.get("retries", 0),
        stream_usage=True,
        **ask["options"],
    )
    if ask["call"] == "whole":
        answer = await model.ainvoke(ask["prompt"])
        report["text"] = answer.content
    else:
        answer = None
        async for chunk in model.astream(ask["prompt"]):
            report["text"] += chunk.content
            answer = chunk if answer is None else answer + chunk
    report["finish"] = answer.response_metadata.get("finish_reason")
    report["usage"] = [answer.usage_metadata["input_tokens"], answer.usage_metadata["output_tokens"]]


async def messages(sdk, ask, report):
    base = ask["base"] + ask.get("prefix", "")
    client = sdk.AsyncAnthropic(base_url=base, api_key="k", max_retries=ask.get("retries", 0))
    given = {"model": ask["model"], "max_tokens": 100_000, **ask["options"]}
    given["messages"] = [{"role": "user", "content": ask["prompt"]}]
    if ask["call"] == "whole":
        given["max_tokens"] = min(given["max_tokens"], 20_000)  # the SDK refuses more without a stream
        answer = await client.messages.create(**given)
    elif ask["call"] == "helper":
        async with client.messages.stream(**given) as stream:
            async for _ in stream:
                pass
            answer = await stream.get_final_message()
    elif ask["call"] == "count":
        del given["max_tokens"]
        report["usage"] = [(await client.messages.count_tokens(**given)).input_tokens, 0]
        return
    else:
        async for event in await client.messages.create(stream=True, **given):
            if event.type == "message_start":
                report["usage"] = [event.message.usage.input_tokens, 0]
            elif event.type == "content_block_delta":
                report["text"] += event.delta.text
            elif event.type == "message_delta":
                report["finish"], report["extra"] = event.delta.stop_reason, event.delta.stop_sequence
                report["usage"][1] = event.usage.output_tokens
        return
    report["text"] = "".join(block.text for block in answer.content)
    report["finish"], report["extra"] = answer.stop_reason, answer.stop_sequence
    report["usage"] = [answer.usage.input_tokens, answer.usage.output_tokens]
    report["id"] = answer._request_id if hasattr(answer, "_request_id") else None


async def models(sdk, ask, report):
    given = {"api_key": ask.get("key", "k"), "max_retries": 0}
    if sdk is anthropic:
        client = sdk.AsyncAnthropic(base_url=ask["base"], **given)
    else:
        client = sdk.AsyncOpenAI(base_url=f"{ask['base']}/v1", **given)
    if ask["call"] != "get":
        report["extra"] = [model.id async for model in client.models.list()]
    report["text"] = (await client.models.retrieve(ask["model"])).id


async def answer(ask):
    report = dict(REPORT)
    if ask["client"] in ("messages", "anthropic-models"):
        sdk = anthropic
    else:
        import openai as sdk
    work = (
        ASKS[ask["client"]]
        if ask.get("tools")
        else {
            "chat": openai_chat,
            "responses": openai_responses,
            "completions": openai_completions,
            "langchain": langchain,
            "messages": messages,
            "openai-models": models,
            "anthropic-models": models,
        }[ask["client"]]
    )
    try:
        await work(sdk, ask, report)
    except asyncio.CancelledError:
        report["error"] = {"kind": "aborted"}
    except Exception as error:  # noqa: BLE001 - whatever a client raises is what is reported
        body = getattr(error, "body", None)
        report["error"] = {
            "kind": type(error).__name__,
            "status": getattr(error, "status_code", None),
            "body": body,
            "text": str(error),
        }
    return report


def next_line():
    return asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))


async def main():
    print(json.dumps({"anthropic": anthropic.__version__}), flush=True)
    line = next_line()
    while asked := await line:
        work, line = asyncio.ensure_future(answer(json.loads(asked))), next_line()
        await asyncio.wait((work, line), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():  # what came is `abort`
            work.cancel()
            line = next_line()
        print(json.dumps(await work, default=str), flush=True)


asyncio.run(main())
