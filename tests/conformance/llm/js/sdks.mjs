// Official npm clients as a program: a JSON line in says what to ask, a JSON line out what came.
// What came is told in one form for all clients: text, finish, usage as [input, output], extra, or error.

import { createInterface } from "node:readline";

import Anthropic from "@anthropic-ai/sdk";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import OpenAI from "openai";

import { toolAsks } from "./tool_asks.mjs";

async function chat(ask, report, signal) {
  const client = new OpenAI({ baseURL: `${ask.base}/v1`, apiKey: "k", maxRetries: ask.retries ?? 0 });
  const given = { model: ask.model, messages: [{ role: "user", content: ask.prompt }], ...ask.options };
  if (ask.call === "whole") {
    const answer = await client.chat.completions.create(given, { signal });
    report.text = answer.choices[0].message.content;
    report.finish = answer.choices[0].finish_reason;
    report.usage = [answer.usage.prompt_tokens, answer.usage.completion_tokens];
    report.extra = answer.choices;
    return;
  }
  if (ask.call === "helper") {
    const answer = await client.chat.completions.stream(given, { signal }).finalChatCompletion();
    report.text = answer.choices[0].message.content;
    report.finish = answer.choices[0].finish_reason;
    report.extra = answer.choices;
    return;
  }
  const stream = await client.chat.completions.create(
    { ...given, stream: true, stream_options: { include_usage: true } },
    { signal },
  );
  for await (const chunk of stream) {
    for (const choice of chunk.choices) {
      report.text += choice.delta.content ?? "";
      report.finish = choice.finish_reason ?? report.finish;
      report.extra = [...(report.extra ?? []), choice.index];
    }
    if (chunk.usage) report.usage = [chunk.usage.prompt_tokens, chunk.usage.completion_tokens];
  }
  if (signal.aborted) throw signal.reason; // this client ends an aborted stream without an error
}

async function messages(ask, report, signal) {
  const client = new Anthropic({ baseURL: ask.base, apiKey: "k", maxRetries: ask.retries ?? 0 });
  const given = { model: ask.model, max_tokens: 20000, ...ask.options };
  given.messages = [{ role: "user", content: ask.prompt }];
  const answer =
    ask.call === "whole"
      ? await client.messages.create(given, { signal })
      : await client.messages.stream(given, { signal }).finalMessage();
  report.text = answer.content.map((block) => block.text).join("");
  report.finish = answer.stop_reason;
  report.extra = answer.stop_sequence;
  report.usage = [answer.usage.input_tokens, answer.usage.output_tokens];
}

function aiModel(ask) {
  const base = { baseURL: `${ask.base}/v1`, apiKey: "k" };
  if (ask.client === "ai-anthropic") return createAnthropic(base)(ask.model);
  if (ask.client === "ai-openai") return createOpenAI(base)(ask.model);
  return createOpenAICompatible({ ...base, name: "tailrace", includeUsage: true })(ask.model);
}

async function ai(ask, report, abortSignal) {
  const given = {
    model: aiModel(ask),
    prompt: ask.prompt,
    maxRetries: ask.retries ?? 0,
    abortSignal,
    ...ask.options,
  };
  if (ask.call === "whole") {
    const answer = await generateText(given);
    report.text = answer.text;
    report.finish = answer.finishReason;
    report.usage = [answer.usage.inputTokens, answer.usage.outputTokens];
    return;
  }
  const kinds = new Set();
  for await (const part of streamText({ ...given, onError: () => {} }).fullStream) {
    kinds.add(part.type);
    if (part.type === "text-delta") report.text += part.text;
    if (part.type === "finish") {
      report.finish = part.finishReason;
      report.usage = [part.totalUsage.inputTokens, part.totalUsage.outputTokens];
    }
    if (part.type === "abort") throw new DOMException("aborted", "AbortError");
    if (part.type === "error" && !report.error) report.error = describe(part.error);
  }
  report.extra = [...kinds];
}

function describe(error) {
  const inner = error?.lastError ?? error;
  return {
    kind: inner?.name === "Error" ? inner.constructor.name : (inner?.name ?? inner?.constructor?.name ?? "?"),
    status: inner?.status ?? inner?.statusCode ?? null,
    body: inner?.error ?? inner?.responseBody ?? null,
    text: typeof inner === "string" ? inner : (inner?.message ?? JSON.stringify(inner)),
  };
}

const clients = {
  chat,
  messages,
  "ai-compatible": ai,
  "ai-openai": ai,
  "ai-anthropic": ai,
};

function plainClient(ask) {
  if (ask.client === "chat") return new OpenAI({ baseURL: `${ask.base}/v1`, apiKey: "k", maxRetries: 0 });
  if (ask.client === "messages") return new Anthropic({ baseURL: ask.base, apiKey: "k", maxRetries: 0 });
  return aiModel(ask);
}

let controller = new AbortController();

async function answer(ask) {
  const report = { text: "", finish: null, usage: null, extra: null, error: null };
  const { signal } = controller;
  try {
    if (ask.tools) await toolAsks[ask.client](plainClient(ask), ask, report);
    else await clients[ask.client](ask, report, signal);
  } catch (error) {
    report.error = signal.aborted ? { kind: "aborted" } : describe(error);
  }
  controller = new AbortController();
  console.log(JSON.stringify(report));
}

console.log(JSON.stringify({ node: process.version }));
createInterface({ input: process.stdin }).on("line", (line) => {
  if (line === "abort") controller.abort();
  else answer(JSON.parse(line));
});
