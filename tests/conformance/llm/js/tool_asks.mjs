// Asks with tools: each client's own way to offer tools, to read calls and to answer them.
// What came is told as `tool_asks.py` does.

import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const words = ["auto", "none", "required"];

async function chat(client, ask, report) {
  const messages = [{ role: "user", content: ask.prompt }];
  const tools = ask.tools.map((offered) => ({ type: "function", function: offered }));
  const given = { model: ask.model, messages, tools, ...ask.options };
  if (ask.choice) {
    given.tool_choice = words.includes(ask.choice)
      ? ask.choice
      : { type: "function", function: { name: ask.choice } };
  }
  if (ask.parallel !== undefined) given.parallel_tool_calls = ask.parallel;
  const answer =
    ask.call === "whole"
      ? await client.chat.completions.create(given)
      : await client.chat.completions.stream(given).finalChatCompletion();
  const { message, finish_reason: finish } = answer.choices[0];
  report.text = message.content;
  report.finish = finish;
  report.calls = (message.tool_calls ?? []).map((c) => [c.id, c.function.name, c.function.arguments]);
  if (ask.result !== undefined) {
    messages.push(message);
    for (const call of message.tool_calls) {
      messages.push({ role: "tool", tool_call_id: call.id, content: ask.result });
    }
    delete given.tool_choice;
    report.then = (await client.chat.completions.create(given)).choices[0].message.content;
  }
}

async function messages(client, ask, report) {
  const turns = [{ role: "user", content: ask.prompt }];
  const tools = ask.tools.map(({ name, description, parameters }) => ({
    name,
    description,
    input_schema: parameters,
  }));
  const given = { model: ask.model, max_tokens: 2000, messages: turns, tools, ...ask.options };
  const types = { auto: "auto", none: "none", required: "any" };
  given.tool_choice = { type: "auto" };
  if (ask.choice) {
    given.tool_choice = types[ask.choice] ? { type: types[ask.choice] } : { type: "tool", name: ask.choice };
  }
  if (ask.parallel !== undefined) given.tool_choice.disable_parallel_tool_use = !ask.parallel;
  const answer =
    ask.call === "whole"
      ? await client.messages.create(given)
      : await client.messages.stream(given).finalMessage();
  const calls = answer.content.filter((block) => block.type === "tool_use");
  report.text = answer.content.map((block) => block.text ?? "").join("");
  report.finish = answer.stop_reason;
  report.calls = calls.map((call) => [call.id, call.name, JSON.stringify(call.input)]);
  report.kinds = answer.content.map((block) => (block.type === "text" ? "text" : "call"));
  if (ask.result !== undefined) {
    turns.push({ role: "assistant", content: answer.content });
    turns.push({
      role: "user",
      content: calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: ask.result })),
    });
    given.tool_choice = { type: "auto" };
    const again = await client.messages.create(given);
    report.then = again.content.map((block) => block.text).join("");
  }
}

async function ai(model, ask, report) {
  const offered = ask.tools.map(({ name, description, parameters }) => {
    const made = { description, inputSchema: jsonSchema(parameters) };
    if (ask.result !== undefined) made.execute = async () => ask.result;
    return [name, tool(made)];
  });
  const given = { model, prompt: ask.prompt, maxRetries: 0, tools: Object.fromEntries(offered), ...ask.options };
  if (ask.choice) {
    given.toolChoice = words.includes(ask.choice) ? ask.choice : { type: "tool", toolName: ask.choice };
  }
  if (ask.parallel !== undefined) {
    given.providerOptions = {
      openai: { parallelToolCalls: ask.parallel },
      anthropic: { disableParallelToolUse: !ask.parallel },
    };
  }
  if (ask.result !== undefined) {
    given.stopWhen = stepCountIs(2);
    given.prepareStep = ({ stepNumber }) => (stepNumber ? { toolChoice: "auto" } : {});
  }
  let steps;
  if (ask.call === "whole") {
    ({ steps } = await generateText(given));
  } else {
    const result = streamText({ ...given, onError: () => {} });
    for await (const part of result.fullStream) if (part.type === "error") throw part.error;
    steps = await result.steps;
  }
  const [first, second] = steps;
  report.text = first.text;
  report.finish = first.finishReason;
  report.calls = first.toolCalls.map((call) => [call.toolCallId, call.toolName, JSON.stringify(call.input)]);
  if (ask.client !== "ai-compatible") report.kinds = kindsOf(first);
  if (second) report.then = second.text;
}

function kindsOf(step) {
  const shown = step.content.filter((part) => part.type === "text" || part.type === "tool-call");
  return shown.map((part) => (part.type === "text" ? "text" : "call"));
}

export const toolAsks = { chat, messages, "ai-compatible": ai, "ai-openai": ai, "ai-anthropic": ai };
