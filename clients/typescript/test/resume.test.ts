// Streams cut at every byte, and resumed: the text is exact, whatever the API.

import { describe, expect, test } from "vitest";

import { Anthropic } from "../src/anthropic.js";
import { OpenAI } from "../src/openai.js";
import { collect } from "../src/parts.js";
import { Replicate } from "../src/replicate.js";
import type { Run } from "../src/run.js";
import { bytes } from "./streams.js";

const BASE = "http://h.example";
const TEXTS = ["a", "漢", " 😀", "\n", "끝"];
const URLS = { get: `${BASE}/get`, cancel: `${BASE}/cancel`, stream: `${BASE}/stream` };
const MESSAGES = { model: "m", max_tokens: 9, messages: [] };

/** What a server has to say: one entry an event of its own, with its id on the last frame. */
type Log = readonly { readonly id: string; readonly frames: string }[];

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
    const body = bytes(this.#log.slice(after).map(({ frames }) => frames).join(""));
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

function data(value: unknown, name = "", id = ""): string {
  const fields = [name && `event: ${name}\n`, id && `id: ${id}\n`, `data: ${JSON.stringify(value)}\n\n`];
  return fields.join("");
}

function chunk(delta: unknown, id = "", finish: string | null = null): string {
  return data({ choices: [{ index: 0, delta, finish_reason: finish }] }, "", id);
}

function delta(text: string, id = ""): string {
  const value = { type: "content_block_delta", index: 0, delta: { type: "text_delta", text } };
  return data(value, value.type, id);
}

const OUTPUTS: Log = [
  ...TEXTS.map((text, at) => {
    const lines = text.split("\n").map((line) => `data: ${line}\n`);
    return { id: `1:${at}`, frames: `event: output\nid: 1:${at}\n${lines.join("")}\n` };
  }),
  { id: "1:9", frames: "event: done\nid: 1:9\ndata: {}\n\n" },
];

// The first event has the role before its text, and one has two frames of text.
const CHUNKS: Log = [
  { id: "1:0", frames: chunk({ role: "assistant", content: "" }) + chunk({ content: TEXTS[0] }, "1:0") },
  { id: "1:2", frames: chunk({ content: TEXTS[1] }) + chunk({ content: TEXTS[2] }, "1:2") },
  { id: "1:3", frames: chunk({ content: TEXTS[3] }, "1:3") },
  { id: "1:4", frames: chunk({ content: TEXTS[4] }, "1:4") },
  { id: "1:9", frames: `${chunk({}, "", "stop")}id: 1:9\ndata: [DONE]\n\n` },
];

const EVENTS: Log = [
  {
    id: "1:0",
    frames: data({ type: "message_start", message: {} }) + data({ type: "ping" }) + delta(TEXTS[0] ?? "", "1:0"),
  },
  { id: "1:2", frames: delta(TEXTS[1] ?? "") + delta(TEXTS[2] ?? "", "1:2") },
  { id: "1:4", frames: delta(TEXTS[3] ?? "") + delta(TEXTS[4] ?? "", "1:4") },
  {
    id: "1:9",
    frames: data({ type: "message_delta", delta: { stop_reason: "end_turn" } }) + data({ type: "message_stop" }, "", "1:9"),
  },
];

const APIS: [string, Log, (fetch: typeof globalThis.fetch) => Run][] = [
  ["Replicate", OUTPUTS, (fetch) => new Replicate({ baseUrl: BASE, fetch }).stream({ model: "m/m", input: {} })],
  ["OpenAI", CHUNKS, (fetch) => new OpenAI({ baseUrl: BASE, fetch }).stream(MESSAGES, { resumable: true })],
  ["Anthropic", EVENTS, (fetch) => new Anthropic({ baseUrl: BASE, fetch }).stream(MESSAGES, { resumable: true })],
];

describe.each(APIS)("%s", (_, log, stream) => {
  test("is exact wherever the connection is cut, and one create", async () => {
    const length = bytes(log.map(({ frames }) => frames).join("")).length;
    for (let cutAt = 0; cutAt <= length; cutAt += 1) {
      const server = new CuttingServer(log, cutAt);
      const { text, end } = await collect(stream(server.fetch));
      expect([cutAt, text, end.type]).toEqual([cutAt, TEXTS.join(""), "finished"]);
      expect([server.creates, server.connections]).toEqual([1, cutAt === length ? 1 : 2]);
    }
  });
});
