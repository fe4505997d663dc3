// OpenAI's and Anthropic's APIs against a server that cuts and refuses.

import { afterEach, beforeEach, describe, expect, test } from "vitest";

import { Anthropic } from "../src/anthropic.js";
import { OpenAI } from "../src/openai.js";
import { collect, type Part } from "../src/parts.js";
import { cutAfter, hangUp, json, open, sse, TestServer } from "./server.js";
import { bytes, cut } from "./streams.js";

const CHAT = "POST /v1/chat/completions";
const CHAT_STREAM = "GET /v1/chat/completions/p1/stream";
const MESSAGES = "POST /v1/messages";
const MESSAGES_STREAM = "GET /v1/messages/p1/stream";
const CANCEL = "POST /v1/predictions/p1/cancel";
const MESSAGE = [{ role: "user", content: "Hi" }];
const CHAT_REQUEST = { model: "local/tiny", messages: MESSAGE };
const MESSAGE_REQUEST = { model: "local/tiny", max_tokens: 9, messages: MESSAGE };
const DONE = "data: [DONE]\n\n";
const RETRY = "retry: 0\n";

let server: TestServer;

beforeEach(async () => {
  server = await new TestServer().start();
  server.on(CANCEL, json(200, {}));
});

afterEach(() => server.stop());

function openai(): OpenAI {
  return new OpenAI({ baseUrl: server.url, token: "secret" });
}

function anthropic(): Anthropic {
  return new Anthropic({ baseUrl: server.url, token: "secret" });
}

function chunk(text: string, id = "", finish: string | null = null): string {
  const data = { choices: [{ index: 0, delta: { content: text }, finish_reason: finish }] };
  return `${id === "" ? "" : `id: ${id}\n`}data: ${JSON.stringify(data)}\n\n`;
}

function event(type: string, members: object = {}, id = ""): string {
  const data = JSON.stringify({ type, ...members });
  return `event: ${type}\n${id === "" ? "" : `id: ${id}\n`}data: ${data}\n\n`;
}

function delta(text: string, id = ""): string {
  return event("content_block_delta", { index: 0, delta: { type: "text_delta", text } }, id);
}

function resumable(name: string): Record<string, string> {
  return { Location: `${name}/p1/stream`, "X-Request-Id": "p1" };
}

describe("attached", () => {
  test("a chat is one POST", async () => {
    server.on(CHAT, sse(chunk("a") + chunk("", "", "stop") + DONE));
    const { text, end } = await collect(openai().stream(CHAT_REQUEST));
    expect([text, end]).toMatchObject(["a", { type: "finished", reason: "stop" }]);
    const [asked] = server.asked;
    expect(asked?.headers).toMatchObject({ authorization: "Bearer secret", accept: "text/event-stream" });
    expect(asked?.headers["x-resumable"]).toBeUndefined();
    expect(JSON.parse(asked?.body ?? "")).toMatchObject({ stream: true, stream_options: { include_usage: true } });
  });

  test("B106 a message is the same text wherever 漢😀 is cut by the network", async () => {
    const stream = bytes(event("message_start") + delta("漢") + delta("😀") + event("message_stop"));
    const first = stream.indexOf(bytes("漢")[0] ?? 0);
    for (let place = first - 1; place <= stream.lastIndexOf(bytes("😀").at(-1) ?? 0) + 1; place += 1) {
      server.on(MESSAGES, sse(cut(stream, place)));
      expect((await collect(anthropic().stream(MESSAGE_REQUEST))).text).toBe("漢😀");
    }
    expect(server.asked[0]?.headers).toMatchObject({ "anthropic-version": "2023-06-01" });
  });

  test("a cut one is truncated and not asked again", async () => {
    server.on(CHAT, cutAfter(chunk("a")));
    server.on(MESSAGES, sse(event("message_start") + delta("b")));
    expect(await collect(openai().stream(CHAT_REQUEST))).toMatchObject({ text: "a", end: { type: "truncated" } });
    expect(await collect(anthropic().stream(MESSAGE_REQUEST))).toMatchObject({ text: "b", end: { type: "truncated" } });
    expect(server.calls).toEqual([CHAT, MESSAGES]);
  });

  test("an error in mid-stream keeps the text before it", async () => {
    const error = { message: "broke", type: "server_error", code: "engine_error" };
    server.on(CHAT, sse(`${chunk("a")}event: error\ndata: ${JSON.stringify({ error })}\n\n${DONE}`));
    const { text, end } = await collect(openai().stream(CHAT_REQUEST));
    expect([text, end]).toMatchObject(["a", { type: "error", failure: { ...error, status: null } }]);
  });

  test("a refusal is an error with what the server said", async () => {
    const error = { message: "Too long.", type: "invalid_request_error", code: "context_length_exceeded" };
    server.on(CHAT, json(400, { error: { ...error, param: "messages" } }));
    expect((await collect(openai().stream(CHAT_REQUEST))).end).toEqual({
      type: "error",
      failure: { ...error, status: 400, retryAfterMs: null },
    });
    const overloaded = { type: "error", error: { type: "overloaded_error", message: "Loading." } };
    server.on(MESSAGES, json(529, overloaded, { "Retry-After": "2" }));
    expect((await collect(anthropic().stream(MESSAGE_REQUEST))).end).toMatchObject({
      type: "error",
      failure: { message: "Loading.", type: "overloaded_error", status: 529, retryAfterMs: 2000 },
    });
    await expect(openai().create(CHAT_REQUEST)).rejects.toThrow("Too long.");
  });

  test("an answer that is no stream is an error", async () => {
    server.on(CHAT, json(200, { choices: [] }));
    const { end } = await collect(openai().stream(CHAT_REQUEST));
    expect(end).toMatchObject({ type: "error", failure: { message: expect.stringContaining("application/json") } });
  });

  test("no answer is an error", async () => {
    server.on(CHAT, hangUp);
    expect((await collect(openai().stream(CHAT_REQUEST))).end).toMatchObject({ type: "error" });
    expect(server.calls).toEqual([CHAT]);
  });

  test("cancelling closes the connection", async () => {
    server.on(CHAT, open(chunk("a")));
    const run = openai().stream(CHAT_REQUEST);
    const parts: Part[] = [];
    for await (const part of run) {
      parts.push(part);
      await run.cancel();
    }
    expect(parts).toEqual([{ type: "text", text: "a" }, { type: "cancelled" }]);
    await server.until(() => server.closedEarly === 1);
    expect(server.calls).toEqual([CHAT]);
  });

  test("cancelling before the answer does so too", async () => {
    const run = openai().stream(CHAT_REQUEST);
    server.on(CHAT, () => void run.cancel());
    expect((await collect(run)).end).toEqual({ type: "cancelled" });
    await server.until(() => server.closedEarly === 1);
  });

  test("whole answers come as they are", async () => {
    server.on(CHAT, json(200, { choices: [] })).on(MESSAGES, json(200, { content: [] }));
    expect(await openai().create(CHAT_REQUEST)).toEqual({ choices: [] });
    expect(await anthropic().create(MESSAGE_REQUEST)).toEqual({ content: [] });
    expect(JSON.parse(server.asked[0]?.body ?? "")).toEqual({ ...CHAT_REQUEST, stream: false });
  });
});

describe("resumable", () => {
  test("a chat goes on where it was cut", async () => {
    server.on(CHAT, cutAfter(RETRY + chunk("a", "1:3"), resumable("completions")));
    server.on(CHAT_STREAM, hangUp, sse(chunk("b", "1:4") + chunk("", "1:5", "stop") + DONE));
    const { text, end } = await collect(openai().stream(CHAT_REQUEST, { resumable: true }));
    expect([text, end.type]).toEqual(["ab", "finished"]);
    expect(server.calls).toEqual([CHAT, CHAT_STREAM, CHAT_STREAM]);
    expect(server.asked[0]?.headers).toMatchObject({ "x-resumable": "true" });
    const { headers } = server.asked[2] ?? {};
    expect(headers).toMatchObject({ "last-event-id": "1:3", authorization: "Bearer secret" });
  });

  test("a message that was cut before its first event starts again", async () => {
    const start = event("message_start", { message: { usage: { input_tokens: 3 } } }, "1:2.1");
    server.on(MESSAGES, cutAfter(RETRY + start.slice(0, -1), resumable("messages")));
    server.on(MESSAGES_STREAM, sse(start + delta("a", "1:3") + event("message_stop", {}, "1:4")));
    const { text, end } = await collect(anthropic().stream(MESSAGE_REQUEST, { resumable: true }));
    expect([text, end]).toMatchObject(["a", { type: "finished", usage: { inputTokens: 3 } }]);
    expect(server.asked[1]?.headers["last-event-id"]).toBeUndefined();
  });

  test("a chat that was cut after its reason is asked for its usage", async () => {
    const usage = 'id: 1:4.2\ndata: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\n';
    server.on(CHAT, cutAfter(RETRY + chunk("a", "1:3") + chunk("", "1:4.1", "stop"), resumable("completions")));
    server.on(CHAT_STREAM, sse(usage + DONE));
    expect(await collect(openai().stream(CHAT_REQUEST, { resumable: true }))).toMatchObject({
      text: "a",
      end: { type: "finished", reason: "stop", usage: { inputTokens: 3, outputTokens: 2 } },
    });
    expect(server.asked[1]?.headers).toMatchObject({ "last-event-id": "1:4.1" });
  });

  test.each([
    ["has no more", json(204, "")],
    ["has forgotten it", json(404, { error: { message: "No such stream." } })],
  ])("a chat that was cut after its reason has finished when the server %s", async (_, answer) => {
    server.on(CHAT, cutAfter(RETRY + chunk("a", "1:3", "stop"), resumable("completions")));
    server.on(CHAT_STREAM, answer);
    const { text, end } = await collect(openai().stream(CHAT_REQUEST, { resumable: true }));
    expect([text, end]).toMatchObject(["a", { type: "finished", reason: "stop" }]);
    expect(server.calls).toEqual([CHAT, CHAT_STREAM]);
  });

  test("what came without an id is not read again", async () => {
    const piece = { index: 0, id: "c0", function: { name: "weather", arguments: "{" } };
    const call = `data: ${JSON.stringify({ choices: [{ index: 0, delta: { tool_calls: [piece] } }] })}\n\n`;
    for (const said of [chunk("a"), call]) {
      server.on(CHAT, cutAfter(RETRY + said, resumable("completions")));
      const { end } = await collect(openai().stream(CHAT_REQUEST, { resumable: true }));
      expect(end.type).toBe("truncated");
    }
    expect(server.calls).toEqual([CHAT, CHAT]);
  });

  test("without a Location it is truncated like any other", async () => {
    server.on(CHAT, cutAfter(RETRY + chunk("a", "1:3")));
    const { end } = await collect(openai().stream(CHAT_REQUEST, { resumable: true }));
    expect(end).toMatchObject({ type: "truncated", failure: { type: "network" } });
    expect(server.calls).toEqual([CHAT]);
  });

  test("a cancel is sent once, by the id of the answer", async () => {
    server.on(CHAT, open(chunk("a", "1:3"), resumable("completions")));
    const run = openai().stream(CHAT_REQUEST, { resumable: true });
    for await (const part of run) if (part.type === "text") await Promise.all([run.cancel(), run.cancel()]);
    expect(server.calls).toEqual([CHAT, CANCEL]);
    await server.until(() => server.closedEarly === 1);
  });

  test("a cancel before the answer waits for it", async () => {
    const run = openai().stream(CHAT_REQUEST, { resumable: true });
    let cancelled = Promise.resolve();
    server.on(CHAT, async (response, asked) => {
      cancelled = run.cancel();
      await open(chunk("a", "1:3"), resumable("completions"))(response, asked);
    });
    expect((await collect(run)).end).toEqual({ type: "cancelled" });
    await cancelled;
    expect(server.calls).toEqual([CHAT, CANCEL]);
    await server.until(() => server.closedEarly === 1);
  });

  test("leaving cancels nothing", async () => {
    server.on(CHAT, open(chunk("a", "1:3"), resumable("completions")));
    const run = openai().stream(CHAT_REQUEST, { resumable: true });
    for await (const part of run) if (part.type === "text") run.leave();
    await server.until(() => server.closedEarly === 1);
    expect(server.calls).toEqual([CHAT]);
  });

  test("a refusal is an error and nothing else is asked", async () => {
    server.on(CHAT, json(429, { error: { message: "Full.", type: "rate_limit_error", code: "queue_full" } }));
    const run = openai().stream(CHAT_REQUEST, { resumable: true });
    expect((await collect(run)).end).toMatchObject({ type: "error", failure: { code: "queue_full", status: 429 } });
    await run.cancel();
    expect(server.calls).toEqual([CHAT]);
  });
});
