"""Asks with tools: each client's own way to offer tools, to read calls and to answer them.

What came is told in one form: `calls` as [id, name, arguments], `text`, `finish`; `kinds` is the order of
texts and calls where the API keeps it. With `result` in the ask every call is answered by it and the
model asked again: `then` is the text that came.
"""

import json


def function_of(tool):
    return {"type": "function", "function": tool}


async def chat(sdk, ask, report):
    client = sdk.AsyncOpenAI(base_url=f"{ask['base']}/v1", api_key="k", max_retries=0)
    messages = [{"role": "user", "content": ask["prompt"]}]
    given = {
        "model": ask["model"],
        "messages": messages,
        "tools": [function_of(tool) for tool in ask["tools"]],
        **ask["options"],
    }
    named = ask.get("choice")
    if named:
        word = named in ("auto", "none", "required")
        given["tool_choice"] = named if word else {"type": "function", "function": {"name": named}}
    if "parallel" in ask:
        given["parallel_tool_calls"] = ask["parallel"]
    if ask["call"] == "whole":
        answer = (await client.chat.completions.create(**given)).choices[0]
    elif ask["call"] == "helper":
        async with client.chat.completions.stream(**given) as stream:
            done = [event async for event in stream if event.type == "tool_calls.function.arguments.done"]
            answer = (await stream.get_final_completion()).choices[0]
        report["extra"] = [[event.index, event.name, event.arguments] for event in done]
    else:
        answer = await accumulated(client, given)
    message = answer.message
    report["text"], report["finish"] = message.content, answer.finish_reason
    report["calls"] = [[c.id, c.function.name, c.function.arguments] for c in message.tool_calls or ()]
    if "result" in ask:
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": ask["result"]})
        given.pop("tool_choice", None)
        report["then"] = (await client.chat.completions.create(**given)).choices[0].message.content


async def accumulated(client, given):
    """Read chunks as plain callers do, by their index."""
    from openai.types.chat.chat_completion import Choice

    message = {"role": "assistant", "content": None}
    calls, finish = [], None
    async for chunk in await client.chat.completions.create(stream=True, **given):
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            if choice.delta.content:
                message["content"] = (message["content"] or "") + choice.delta.content
            for call in choice.delta.tool_calls or ():
                if call.index == len(calls):
                    function = {"name": call.function.name, "arguments": ""}
                    calls.append({"id": call.id, "type": call.type, "function": function})
                calls[call.index]["function"]["arguments"] += call.function.arguments
    message["tool_calls"] = calls or None
    return Choice.model_validate({"index": 0, "message": message, "finish_reason": finish})


async def responses(sdk, ask, report):
    client = sdk.AsyncOpenAI(base_url=f"{ask['base']}/v1", api_key="k", max_retries=0)
    items = [{"role": "user", "content": ask["prompt"]}]
    given = {
        "model": ask["model"],
        "input": items,
        "tools": [{"type": "function", "strict": False, **tool} for tool in ask["tools"]],
        **ask["options"],
    }
    named = ask.get("choice")
    if named:
        word = named in ("auto", "none", "required")
        given["tool_choice"] = named if word else {"type": "function", "name": named}
    if "parallel" in ask:
        given["parallel_tool_calls"] = ask["parallel"]
    if ask["call"] == "whole":
        answer = await client.responses.create(**given)
    else:
        async with client.responses.stream(**given) as stream:
            async for event in stream:
                if event.type in ("response.completed", "response.incomplete"):
                    answer = event.response
    report["text"], report["finish"] = answer.output_text, answer.status
    calls = [item for item in answer.output if item.type == "function_call"]
    report["calls"] = [[call.call_id, call.name, call.arguments] for call in calls]
    report["kinds"] = ["text" if item.type == "message" else "call" for item in answer.output]
    if "result" in ask:
        items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in answer.output]
        for call in calls:
            result = {"type": "function_call_output", "call_id": call.call_id, "output": ask["result"]}
            items.append(result)
        given.pop("tool_choice", None)
        report["then"] = (await client.responses.create(**given)).output_text


async def langchain(sdk, ask, report):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        base_url=f"{ask['base']}/v1", api_key="k", model=ask["model"], max_retries=0, **ask["options"]
    )
    more = {"parallel_tool_calls": ask["parallel"]} if "parallel" in ask else {}
    tools = [function_of(tool) for tool in ask["tools"]]
    bound = model.bind_tools(tools, tool_choice=ask.get("choice"), **more)
    messages = [HumanMessage(ask["prompt"])]
    if ask["call"] == "whole":
        answer = await bound.ainvoke(messages)
    else:
        answer = None
        async for chunk in bound.astream(messages):
            answer = chunk if answer is None else answer + chunk
    report["text"], report["finish"] = answer.content, answer.response_metadata.get("finish_reason")
    report["calls"] = [[c["id"], c["name"], json.dumps(c["args"])] for c in answer.tool_calls]
    if "result" in ask:
        messages.append(answer)
        messages += [ToolMessage(ask["result"], tool_call_id=call["id"]) for call in answer.tool_calls]
        report["then"] = (await model.bind_tools(tools).ainvoke(messages)).content


async def messages(sdk, ask, report):
    client = sdk.AsyncAnthropic(base_url=ask["base"], api_key="k", max_retries=0)
    turns = [{"role": "user", "content": ask["prompt"]}]
    given = {
        "model": ask["model"],
        "max_tokens": 2000,
        "messages": turns,
        "tools": [
            {
                "name": tool["name"],
                "description": tool["description"],
                "input_schema": tool["parameters"],
            }
            for tool in ask["tools"]
        ],
        **ask["options"],
    }
    named = ask.get("choice")
    choice = {"type": "auto"}
    if named:
        words = {"auto": "auto", "none": "none", "required": "any"}
        choice = {"type": words[named]} if named in words else {"type": "tool", "name": named}
    if "parallel" in ask:
        choice["disable_parallel_tool_use"] = not ask["parallel"]
    given["tool_choice"] = choice
    if ask["call"] == "whole":
        answer = await client.messages.create(**given)
    else:
        async with client.messages.stream(**given) as stream:
            async for _ in stream:
                pass
            answer = await stream.get_final_message()
    report["text"] = "".join(block.text for block in answer.content if block.type == "text")
    report["finish"] = answer.stop_reason
    calls = [block for block in answer.content if block.type == "tool_use"]
    report["calls"] = [[call.id, call.name, json.dumps(call.input)] for call in calls]
    report["kinds"] = ["text" if block.type == "text" else "call" for block in answer.content]
    if "result" in ask:
        turns.append({"role": "assistant", "content": answer.content})
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": ask["result"]} for call in calls
        ]
        turns.append({"role": "user", "content": results})
        given["tool_choice"] = {"type": "auto"}
        again = await client.messages.create(**given)
        report["then"] = "".join(block.text for block in again.content)


ASKS = {"chat": chat, "responses": responses, "langchain": langchain, "messages": messages}
