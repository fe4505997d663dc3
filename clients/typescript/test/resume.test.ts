// Streams cut at every byte, and resumed: text, tool calls and end are exact, whatever the API.

import { describe, expect, test } from "vitest";

import { Anthropic } from "../src/anthropic.js";
import { OpenAI } from "../src/openai.js";
import type { Finished, Part } from "../src/parts.js";
import { Replicate } from "../src/replicate.js";
import type { Run } from "../src/run.js";
import type { ToolCall } from "../src/tool_calls.js";
import { bytes } from "./streams.js";

const BASE = "http://h.example";
const TEXTS = ["a", "漢", " 😀", "\n", "끝"];
const URLS = { get: `${BASE}/get`, cancel: `${BASE}/cancel`, stream: `${BASE}/stream` };
const MESSAGES = { model: "m", max_tokens: 9, messages: [] };

/** What a server has to say: each frame with its id. */
type Log = readonly { readonly id: string; readonly frame: string }[];

/** A server whose first connection is cut at a byte. What it is asked goes on after the id. */
class CuttingServer {
  creates = 0;
  connections = 0;
  readonly #log: Log;
  readonly #cutAt: number;

  constructor(log: Log, cutAt: number) {
    this.#log = log;
    this.#cutAt = cutAt;
  }

  readonly fetch: typeof fetch = (url, init) => {
    const isCreate = init?.method === "POST";
    if (isCreate) this.creates += 1;
    if (isCreate && String(url).endsWith("/predictions")) {
      return Promise.resolve(Response.json({ id: "p", status: "starting", urls: URLS }, { status: 201 }));
    }
    const lastId = new Headers(init?.headers).get("last-event-id");
    const after = this.#log.findIndex(({ id }) => id === lastId) + 1;
    if (lastId !== null && after === 0) throw new Error(`an id that was never given: ${lastId}`);
    this.connections += 1;
    const body = bytes(this.#log.slice(after).map(({ frame }) => frame).join(""));
    const headers = { "Content-Type": "text/event-stream", Location: "x/p/stream", "X-Request-Id": "p" };
    const isCut = this.connections === 1;
    return Promise.resolve(new Response(streamOf(isCut ? body.slice(0, this.#cutAt) : body, isCut), { headers }));
  };
}

function streamOf(body: Uint8Array, isCut: boolean): ReadableStream<Uint8Array> {
  let isSent = false;
  return new ReadableStream({
    pull(controller) {
      if (!isSent) controller.enqueue(withRetry(body));
      else if (isCut) controller.error(new TypeError("connection lost"));
      else controller.close();
      isSent = true;
    },
  });
}

/** So that the client comes back at once. */
function withRetry(body: Uint8Array): Uint8Array {
  return new Uint8Array([...bytes("retry: 0\n"), ...body]);
}

/** The ids are those of an event that several frames tell: all but its last one count its parts. */
function logOf(...events: readonly (readonly string[])[]): Log {
  return events.flatMap((frames, at) =>
    frames.map((frame, part) => {
      const id = part + 1 === frames.length ? `1:${at + 1}` : `1:${at}.${part + 1}`;
      return { id, frame: `id: ${id}\n${frame}\n\n` };
    }),
  );
}

function chunk(delta: unknown, finish: string | null = null): string {
  return `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason: finish }] })}`;
}

function call(index: number, members: object): string {
  return chunk({ tool_calls: [{ index, ...members }] });
}

function event(type: string, members: object = {}): string {
  return `event: ${type}\ndata: ${JSON.stringify({ type, ...members })}`;
}

function delta(index: number, members: object): string {
  return event("content_block_delta", { index, delta: members });
}

function textDelta(text: string | undefined): string {
  return delta(0, { type: "text_delta", text });
}

function begun(index: number, id: string, name: string): string {
  return event("content_block_start", { index, content_block: { type: "tool_use", id, name, input: {} } });
}

function json(index: number, text: string): string {
  return delta(index, { type: "input_json_delta", partial_json: text });
}

const OUTPUTS: Log = logOf(
  ...TEXTS.map((text) => [["event: output", ...text.split("\n").map((line) => `data: ${line}`)].join("\n")]),
  ["event: done\ndata: {}"],
);

const CHUNKS: Log = logOf(
  [chunk({ role: "assistant", content: "" }), chunk({ content: TEXTS[0] })],
  [chunk({ content: TEXTS[1] }), chunk({ content: TEXTS[2] })],
  [chunk({ content: TEXTS[3] })],
  [chunk({ content: TEXTS[4] }), call(0, { id: "c0", type: "function", function: { name: "weather", arguments: "" } })],
  [call(0, { function: { arguments: '{"city":' } })],
  [call(0, { function: { arguments: '"울름' } }), call(0, { function: { arguments: '"}' } })],
  [call(1, { id: "c1", type: "function", function: { name: "time", arguments: "{}" } })],
  [
    chunk({}, "tool_calls"),
    `data: ${JSON.stringify({ choices: [], usage: { prompt_tokens: 3, completion_tokens: 7 } })}`,
    "data: [DONE]",
  ],
);

const EVENTS: Log = logOf(
  [
    event("message_start", { message: { usage: { input_tokens: 3, output_tokens: 0 } } }),
    event("ping"),
    event("content_block_start", { index: 0, content_block: { type: "text", text: "" } }),
    textDelta(TEXTS[0]),
  ],
  [textDelta(TEXTS[1]), textDelta(TEXTS[2])],
  [textDelta(TEXTS[3]), textDelta(TEXTS[4])],
  [event("content_block_stop", { index: 0 }), begun(1, "c0", "weather")],
  [json(1, '{"city":')],
  [json(1, '"울름'), json(1, '"}'), event("content_block_stop", { index: 1 })],
  [begun(2, "c1", "time"), json(2, "{}"), event("content_block_stop", { index: 2 })],
  [
    event("message_delta", { delta: { stop_reason: "tool_use" }, usage: { output_tokens: 7 } }),
    event("message_stop"),
  ],
);

const USAGE = { inputTokens: 3, outputTokens: 7 };

/** The calls, numbered by their API from a first index. */
function callsFrom(first: number): readonly ToolCall[] {
  return [
    { index: first, id: "c0", name: "weather", arguments: '{"city":"울름"}' },
    { index: first + 1, id: "c1", name: "time", arguments: "{}" },
  ];
}

type Api = [string, Log, (fetch: typeof globalThis.fetch) => Run, Omit<Finished, "type">];

const APIS: Api[] = [
  [
    "Replicate",
    OUTPUTS,
    (fetch) => new Replicate({ baseUrl: BASE, fetch }).stream({ model: "m/m", input: {} }),
    { reason: "succeeded", usage: null, calls: [] },
  ],
  [
    "OpenAI",
    CHUNKS,
    (fetch) => new OpenAI({ baseUrl: BASE, fetch }).stream(MESSAGES, { resumable: true }),
    { reason: "tool_calls", usage: USAGE, calls: callsFrom(0) },
  ],
  [
    "Anthropic",
    EVENTS,
    (fetch) => new Anthropic({ baseUrl: BASE, fetch }).stream(MESSAGES, { resumable: true }),
    { reason: "tool_use", usage: USAGE, calls: callsFrom(1) },
  ],
];

async function partsOf(run: Run): Promise<Part[]> {
  const parts: Part[] = [];
  for await (const part of run) parts.push(part);
  return parts;
}

describe.each(APIS)("%s", (_, log, stream, end) => {
  test("is exact wherever the connection is cut, and one create", async () => {
    const length = bytes(log.map(({ frame }) => frame).join("")).length;
    const whole = await partsOf(stream(new CuttingServer(log, length).fetch));
    expect(whole.at(-1)).toEqual({ type: "finished", ...end });
    expect(whole.flatMap((part) => (part.type === "text" ? part.text : []))).toEqual(TEXTS);
    const cutAt = async (place: number): Promise<void> => {
      const server = new CuttingServer(log, place);
      expect([place, await partsOf(stream(server.fetch))]).toEqual([place, whole]);
      expect([server.creates, server.connections]).toEqual([1, place === length ? 1 : 2]);
    };
    await Promise.all(Array.from({ length: length + 1 }, (_, place) => cutAt(place)));
  });
});
