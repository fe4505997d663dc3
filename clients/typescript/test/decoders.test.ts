// What the events of the three APIs mean, without a network.

import { describe, expect, test } from "vitest";

import { MessageDecoder } from "../src/anthropic.js";
import type { Decoder } from "../src/follow.js";
import { ChunkDecoder } from "../src/openai.js";
import { collect, type Part } from "../src/parts.js";
import { OutputDecoder, type Prediction, restOf } from "../src/replicate.js";
import { SseReader } from "../src/sse.js";
import { ToolCalls } from "../src/tool_calls.js";
import { bytes, everyCut } from "./streams.js";

function partsOf(decoder: Decoder, ...chunks: readonly Uint8Array[]): Part[] {
  const reader = new SseReader();
  return chunks.flatMap((chunk) => reader.feed(chunk)).flatMap((event) => decoder.take(event));
}

function data(...values: readonly unknown[]): Uint8Array {
  return bytes(values.map((value) => `data: ${JSON.stringify(value)}\n\n`).join(""));
}

function chunk(delta: unknown, finish: string | null = null): unknown {
  return { choices: [{ index: 0, delta, finish_reason: finish }] };
}

const DONE = bytes("data: [DONE]\n\n");

describe("OpenAI's chunks", () => {
  test("are text, a reason and usage", () => {
    const usage = { prompt_tokens: 3, completion_tokens: 2 };
    const stream = data(chunk({ role: "assistant", content: "" }), chunk({ content: " a" }), chunk({}, "length"));
    expect(partsOf(new ChunkDecoder(), stream, data({ choices: [], usage }), DONE)).toEqual([
      { type: "text", text: " a" },
      { type: "finished", reason: "length", usage: { inputTokens: 3, outputTokens: 2 }, calls: [] },
    ]);
  });

  test.each([{}, { usage: {} }, { choices: [] }, { choices: null }, { choices: [null] }, { choices: [{}] }, null, 7])(
    "B190 %j says nothing and does not throw",
    (nothing) => {
      const end = { type: "finished", reason: null, usage: null, calls: [] };
      expect(partsOf(new ChunkDecoder(), data(nothing), DONE)).toEqual([end]);
    },
  );

  test("B190 an error without a word is an error", () => {
    const [part] = partsOf(new ChunkDecoder(), data({ error: {} }));
    expect(part).toMatchObject({ type: "error", failure: { message: "The server reported an error." } });
  });

  test.each([
    [{ error: { message: "broke", type: "server_error", code: "engine_error" } }, "broke", "server_error"],
    [{ error: "broke" }, "broke", null],
  ])("%j is an error", (given, message, type) => {
    expect(partsOf(new ChunkDecoder(), data(given))).toMatchObject([{ type: "error", failure: { message, type } }]);
  });

  test("an error event is one whatever it holds", () => {
    const stream = bytes("event: error\ndata: broken\n\n");
    expect(partsOf(new ChunkDecoder(), stream)).toMatchObject([{ type: "error", failure: { message: "broken" } }]);
  });

  test("a stream that closes after its reason has finished, before it is truncated", () => {
    const decoder = new ChunkDecoder();
    partsOf(decoder, data(chunk({ content: "a" })));
    expect(decoder.closed()).toBeNull();
    partsOf(decoder, data(chunk({}, "stop")));
    expect(decoder.closed()).toMatchObject({ type: "finished", reason: "stop" });
  });

  test("other choices are left out", () => {
    const second = { choices: [{ index: 1, delta: { content: "b" }, finish_reason: "stop" }] };
    const decoder = new ChunkDecoder();
    expect(partsOf(decoder, data(second, chunk({ content: "a" })))).toEqual([{ type: "text", text: "a" }]);
    expect(decoder.closed()).toBeNull();
  });

  test("tool calls grow by their index", () => {
    const pieces = [
      { index: 0, id: "call_1", type: "function", function: { name: "weather", arguments: "" } },
      { index: 1, id: "call_2", type: "function", function: { name: "time", arguments: "{}" } },
      { index: 0, function: { arguments: '{"city":' } },
      { index: 0, id: "call_1", function: { arguments: '"서울"}' } },
    ];
    const stream = data(...pieces.map((piece) => chunk({ tool_calls: [piece] })), chunk({}, "tool_calls"));
    const parts = partsOf(new ChunkDecoder(), stream, DONE);
    const calls = [
      { index: 0, id: "call_1", name: "weather", arguments: '{"city":"서울"}' },
      { index: 1, id: "call_2", name: "time", arguments: "{}" },
    ];
    expect(parts.filter((part) => part.type === "tool_calls")).toHaveLength(4);
    expect(parts.at(-1)).toEqual({ type: "finished", reason: "tool_calls", usage: null, calls });
  });
});

describe("Anthropic's events", () => {
  const message = (...texts: readonly string[]): Uint8Array =>
    data(
      { type: "message_start", message: { usage: { input_tokens: 4, output_tokens: 0 } } },
      { type: "ping" },
      { type: "content_block_start", index: 0, content_block: { type: "text", text: "" } },
      ...texts.map((text) => ({ type: "content_block_delta", index: 0, delta: { type: "text_delta", text } })),
      { type: "content_block_stop", index: 0 },
      { type: "message_delta", delta: { stop_reason: "end_turn" }, usage: { output_tokens: 2 } },
      { type: "message_stop" },
    );

  test("B106 漢😀 is the same text wherever it is cut", () => {
    const end = { type: "finished", reason: "end_turn", usage: { inputTokens: 4, outputTokens: 2 }, calls: [] };
    for (const chunks of everyCut(message("漢", "😀"))) {
      expect(partsOf(new MessageDecoder(), ...chunks)).toEqual([
        { type: "text", text: "漢" },
        { type: "text", text: "😀" },
        end,
      ]);
    }
  });

  test("blocks of tools grow by their index", () => {
    const tool = { type: "tool_use", id: "toolu_1", name: "weather", input: {} };
    const piece = (json: string): unknown => ({
      type: "content_block_delta",
      index: 1,
      delta: { type: "input_json_delta", partial_json: json },
    });
    const stream = data(
      { type: "content_block_start", index: 1, content_block: tool },
      piece('{"a":'),
      piece("1}"),
      { type: "message_delta", delta: { stop_reason: "tool_use" } },
      { type: "message_stop" },
    );
    expect(partsOf(new MessageDecoder(), stream).at(-1)).toEqual({
      type: "finished",
      reason: "tool_use",
      usage: null,
      calls: [{ index: 1, id: "toolu_1", name: "weather", arguments: '{"a":1}' }],
    });
  });

  test("an error is one, and a name without JSON too", () => {
    const error = { type: "error", error: { type: "api_error", message: "broke" } };
    const failure = { message: "broke", type: "api_error" };
    expect(partsOf(new MessageDecoder(), data(error))).toMatchObject([{ type: "error", failure }]);
    const named = bytes("event: error\ndata: broke\n\n");
    expect(partsOf(new MessageDecoder(), named)).toMatchObject([{ type: "error", failure: { message: "broke" } }]);
  });

  test.each([{}, { type: "ping" }, { type: "message_start" }, { type: "content_block_delta" }, { type: "new" }])(
    "%j says nothing",
    (nothing) => {
      const decoder = new MessageDecoder();
      expect(partsOf(decoder, data(nothing))).toEqual([]);
      expect(decoder.closed()).toBeNull();
    },
  );
});

describe("Replicate's events", () => {
  const stream = (...frames: readonly string[]): Uint8Array => bytes(frames.map((frame) => `${frame}\n\n`).join(""));

  test("are text and an end", () => {
    const whole = stream("event: output\nid: 1:3\ndata:  a", "event: logs\ndata: x", "event: done\ndata: {}");
    expect(partsOf(new OutputDecoder(), whole)).toEqual([
      { type: "text", text: " a" },
      { type: "finished", reason: "succeeded", usage: null, calls: [] },
    ]);
  });

  test("a cancel and a failure are ends of their own", () => {
    const canceled = stream('event: done\ndata: {"reason":"canceled"}');
    expect(partsOf(new OutputDecoder(), canceled)).toEqual([{ type: "cancelled" }]);
    const failed = stream('event: error\ndata: {"detail":"broke"}', 'event: done\ndata: {"reason":"error"}');
    const failure = { message: "broke", type: "prediction" };
    expect(partsOf(new OutputDecoder(), failed)).toMatchObject([{ type: "error", failure }]);
  });

  test("an error without an end broke the stream only", () => {
    const decoder = new OutputDecoder();
    expect(partsOf(decoder, stream('event: error\ndata: {"detail":"away"}'))).toEqual([]);
    expect(decoder.closed()).toBeNull();
    const [end] = partsOf(decoder, stream("event: done\ndata: {}"));
    expect(end).toMatchObject({ type: "finished" });
  });

  test("what the record has beyond the text is the rest", () => {
    const record = { id: "p", error: null, urls: { get: "g", cancel: "c" } };
    const succeeded: Prediction = { ...record, status: "succeeded", output: ["a", "b"] };
    expect(restOf(succeeded, "a")).toMatchObject([{ type: "text", text: "b" }, { type: "finished" }]);
    expect(restOf(succeeded, "ab")).toMatchObject([{ type: "finished" }]);
    expect(restOf({ ...succeeded, output: null }, "ab")).toMatchObject([{ type: "finished" }]);
    expect(restOf({ ...record, status: "processing", output: ["a"] }, "a")).toBeNull();
    expect(restOf({ ...record, status: "failed", output: null, error: "x" }, "")).toMatchObject([{ type: "error" }]);
    expect(restOf({ ...record, status: "canceled", output: [] }, "")).toEqual([{ type: "cancelled" }]);
  });
});

test("calls are sorted by their index, and a piece may come without one before", () => {
  const calls = new ToolCalls();
  calls.add({ index: 2, arguments: "x" });
  calls.add({ index: 1, id: "a", name: "b" });
  expect(calls.calls).toEqual([
    { index: 1, id: "a", name: "b", arguments: "" },
    { index: 2, id: "", name: "", arguments: "x" },
  ]);
});

test("parts that end without an end are truncated", async () => {
  async function* parts(): AsyncGenerator<Part> {
    yield { type: "text", text: "a" };
  }
  expect(await collect(parts())).toEqual({ text: "a", end: { type: "truncated", failure: null } });
});
