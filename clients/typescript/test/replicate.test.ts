// Replicate's API against a server that cuts, refuses and forgets.

import { afterEach, beforeEach, describe, expect, test } from "vitest";

import { RequestError } from "../src/failure.js";
import { collect, type Part } from "../src/parts.js";
import { Replicate } from "../src/replicate.js";
import { type Answer, cutAfter, hangUp, json, open, sse, TestServer } from "./server.js";
import { bytes, cut } from "./streams.js";

const REQUEST = { model: "local/tiny", input: { prompt: "Hi" } };
const CREATE = "POST /v1/models/local/tiny/predictions";
const STREAM = "GET /v1/streams/s1";
const GET = "GET /v1/predictions/p1";
const CANCEL = "POST /v1/predictions/p1/cancel";
const DONE = "event: done\nid: 1:9\ndata: {}\n\n";
// Comes back at once: the server says when.
const RETRY = "retry: 0\n";

let server: TestServer;
let client: Replicate;

beforeEach(async () => {
  server = await new TestServer().start();
  client = new Replicate({ baseUrl: server.url, token: "secret" });
  server.on(CREATE, json(201, record("starting"))).on(CANCEL, json(200, record("canceled")));
});

afterEach(() => server.stop());

function record(status: string, output: unknown = null): unknown {
  const urls = {
    get: `${server.url}/v1/predictions/p1`,
    cancel: `${server.url}/v1/predictions/p1/cancel`,
    stream: `${server.url}/v1/streams/s1`,
  };
  return { id: "p1", status, output, error: null, urls };
}

function output(id: number, text: string): string {
  return `event: output\nid: 1:${id}\ndata: ${text}\n\n`;
}

function count(call: string): number {
  return server.calls.filter((made) => made === call).length;
}

describe("a run", () => {
  test("creates once, reads without the token and finishes", async () => {
    server.on(STREAM, sse(output(3, "Hel") + output(4, "lo") + DONE));
    const { text, end } = await collect(client.stream(REQUEST));
    expect(text).toBe("Hello");
    expect(end).toEqual({ type: "finished", reason: "succeeded", usage: null, calls: [] });
    expect(server.calls).toEqual([CREATE, STREAM]);
    expect(server.asked[0]?.headers.authorization).toBe("Bearer secret");
    expect(JSON.parse(server.asked[0]?.body ?? "")).toEqual({ input: { prompt: "Hi" } });
    expect(server.asked[1]?.headers).toMatchObject({ accept: "text/event-stream" });
    expect(server.asked[1]?.headers.authorization).toBeUndefined();
  });

  test("B191 of a finished prediction is read once and leaves the server, which would hold on", async () => {
    server.on(STREAM, open(output(3, "a") + DONE));
    expect(await collect(client.stream(REQUEST))).toMatchObject({ text: "a", end: { type: "finished" } });
    await server.until(() => server.closedEarly === 1);
    expect(count(STREAM)).toBe(1);
  });

  test("is whole although every byte comes alone", async () => {
    const stream = bytes(output(3, "漢") + output(4, "😀") + DONE);
    const single = cut(stream, ...Array.from({ length: stream.length - 1 }, (_, at) => at + 1));
    server.on(STREAM, sse(single));
    expect((await collect(client.stream(REQUEST))).text).toBe("漢😀");
  });

  test("B029 resumes after the last whole event, and never creates again", async () => {
    server.on(
      STREAM,
      cutAfter(`${RETRY}${output(3, "a")}event: output\nid: 1:4\ndata: lost`),
      hangUp,
      json(503, { title: "away" }),
      cutAfter(RETRY),
      cutAfter(`${RETRY}${output(4, "b")}`),
      sse(`${RETRY}${output(5, "c")}`), // closed without an end
      sse(DONE),
    );
    server.on(GET, json(200, record("processing")));
    const { text, end } = await collect(client.stream(REQUEST));
    expect([text, end.type]).toEqual(["abc", "finished"]);
    expect(count(CREATE)).toBe(1);
    const ids = server.asked.filter(({ path }) => path.includes("streams")).map((a) => a.headers["last-event-id"]);
    expect(ids).toEqual([undefined, "1:3", "1:3", "1:3", "1:3", "1:4", "1:5"]);
  });

  test("goes on after an error that is the stream's alone", async () => {
    const away = 'event: error\nid: 1:3\ndata: {"detail":"away"}\n\n';
    server.on(STREAM, sse(RETRY + output(3, "a") + away), sse(output(4, "b") + DONE));
    expect(await collect(client.stream(REQUEST))).toMatchObject({ text: "ab", end: { type: "finished" } });
  });

  test("is truncated when nothing comes any more, with what came", async () => {
    client = new Replicate({ baseUrl: server.url, reconnects: 2 });
    server.on(STREAM, cutAfter(RETRY + output(3, "a")), cutAfter(RETRY));
    const { text, end } = await collect(client.stream(REQUEST));
    expect([text, end.type]).toEqual(["a", "truncated"]);
    expect(count(STREAM)).toBe(3);
  });

  test("that has text without ids is not read twice", async () => {
    server.on(STREAM, cutAfter(`${RETRY}event: output\ndata: a\n\n`));
    expect(await collect(client.stream(REQUEST))).toMatchObject({ text: "a", end: { type: "truncated" } });
    expect(count(STREAM)).toBe(1);
  });

  test.each<[string, () => Answer]>([
    ["is answered 204", () => json(204, "")],
    ["is gone", () => json(404, { title: "Not found" })],
    ["has nothing but the last words", () => sse(":408: 408 Request Timeout\n\n")],
  ])("takes the rest from the record when the stream %s", async (_, answer) => {
    server.on(STREAM, cutAfter(RETRY + output(3, "a")), answer());
    server.on(GET, json(200, record("succeeded", ["a", "b"])));
    expect(await collect(client.stream(REQUEST))).toMatchObject({ text: "ab", end: { type: "finished" } });
    expect(count(STREAM)).toBe(2);
  });

  test("ends when neither stream nor record are there any more", async () => {
    server.on(STREAM, sse(":408: 408 Request Timeout\n\n"));
    server.on(GET, json(410, { detail: "Removed." }));
    const { end } = await collect(client.stream(REQUEST));
    expect(end).toMatchObject({ type: "error", failure: { message: "Removed.", status: 410 } });
  });

  test("does not take a page for a stream", async () => {
    const page: Answer = (response) => {
      response.writeHead(200, { "Content-Type": "text/html" }).end("data: <html>\n\n");
    };
    server.on(STREAM, page, sse(output(3, "a") + DONE));
    expect((await collect(client.stream(REQUEST))).text).toBe("a");
  });

  test("ends with the refusal when the record is gone too", async () => {
    server.on(STREAM, json(404, { title: "Not found", status: 404, detail: "No such stream." }));
    const { end } = await collect(client.stream(REQUEST));
    expect(end).toMatchObject({ type: "error", failure: { message: "No such stream.", status: 404 } });
  });

  test("notices a connection that is silent for too long", async () => {
    client = new Replicate({ baseUrl: server.url, silenceMs: 20 });
    server.on(STREAM, open(RETRY + output(3, "a")), sse(output(4, "b") + DONE));
    expect((await collect(client.stream(REQUEST))).text).toBe("ab");
  });

  test("ends at an event beyond its limit", async () => {
    client = new Replicate({ baseUrl: server.url, maxEventLength: 50 });
    server.on(STREAM, open(output(3, "x".repeat(100))));
    const { end } = await collect(client.stream(REQUEST));
    expect(end).toMatchObject({ type: "error", failure: { message: expect.stringContaining("50") } });
    expect(count(STREAM)).toBe(1);
  });
});

describe("a create", () => {
  test("that is refused is an error with what the server said, and is not repeated", async () => {
    const problem = { type: "about:blank", title: "Queue full", detail: "Try later.", status: 429 };
    server.on(CREATE, json(429, problem, { "Retry-After": "3" }));
    const { end } = await collect(client.stream(REQUEST));
    const failure = { message: "Try later.", type: "about:blank", code: null, status: 429, retryAfterMs: 3000 };
    expect(end).toEqual({ type: "error", failure });
    expect(server.calls).toEqual([CREATE]);
  });

  test("that gets no answer is an error, and is not repeated", async () => {
    server.on(CREATE, hangUp);
    const { end } = await collect(client.stream(REQUEST));
    expect(end).toMatchObject({ type: "error", failure: { type: "network", status: null } });
    expect(server.calls).toEqual([CREATE]);
  });

  test("alone returns the prediction, or throws", async () => {
    expect(await client.create(REQUEST)).toMatchObject({ id: "p1", status: "starting" });
    server.on(CREATE, json(422, { detail: "No prompt." }), json(500, "<html>"));
    await expect(client.create(REQUEST)).rejects.toThrow("No prompt.");
    await expect(client.create(REQUEST)).rejects.toThrow("The server answered 500.");
  });

  test("can be aborted", async () => {
    const abort = new AbortController();
    server.on(CREATE, () => abort.abort());
    await expect(client.create(REQUEST, { signal: abort.signal })).rejects.toThrow("abort");
  });
});

describe("a cancel", () => {
  test("ends the reading and is sent once", async () => {
    server.on(STREAM, open(output(3, "a")));
    const run = client.stream(REQUEST);
    const parts: Part[] = [];
    for await (const part of run) {
      parts.push(part);
      if (part.type === "text") await Promise.all([run.cancel(), run.cancel()]);
    }
    await run.cancel();
    expect(parts).toEqual([{ type: "text", text: "a" }, { type: "cancelled" }]);
    expect(count(CANCEL)).toBe(1);
    await server.until(() => server.closedEarly === 1);
  });

  test("before the id is known is sent as soon as it is", async () => {
    let answer = (): void => undefined;
    server.on(CREATE, (response, asked) => {
      answer = () => void json(201, record("starting"))(response, asked);
    });
    const run = client.stream(REQUEST);
    const reading = collect(run);
    await server.until(() => count(CREATE) === 1);
    const cancelled = run.cancel();
    expect((await reading).end).toEqual({ type: "cancelled" });
    expect(count(CANCEL)).toBe(0);
    answer();
    await cancelled;
    expect(server.calls).toEqual([CREATE, CANCEL]);
  });

  test("of a create that was refused is not sent", async () => {
    server.on(CREATE, json(422, { detail: "No." }));
    await client.stream(REQUEST).cancel();
    expect(server.calls).toEqual([CREATE]);
  });

  test("after the end is not sent", async () => {
    server.on(STREAM, sse(DONE));
    const run = client.stream(REQUEST);
    await collect(run);
    await run.cancel();
    expect(count(CANCEL)).toBe(0);
  });

  test("that got lost is sent again, one that is refused is not", async () => {
    server.on(CANCEL, hangUp, json(503, { title: "away" }), json(200, record("canceled")));
    const prediction = await client.create(REQUEST);
    expect(await client.cancel(prediction)).toMatchObject({ status: "canceled" });
    expect(count(CANCEL)).toBe(3);
    server.on(CANCEL, json(404, { detail: "None." }));
    await expect(client.cancel(prediction)).rejects.toThrow(RequestError);
    expect(count(CANCEL)).toBe(4);
  });
});

describe("leaving", () => {
  test("ends the reading and cancels nothing", async () => {
    server.on(STREAM, open(output(3, "a")));
    const abort = new AbortController();
    const parts: Part[] = [];
    for await (const part of client.stream(REQUEST, { signal: abort.signal })) {
      parts.push(part);
      abort.abort();
    }
    expect(parts).toEqual([{ type: "text", text: "a" }, { type: "cancelled" }]);
    await server.until(() => server.closedEarly === 1);
    expect(server.calls).toEqual([CREATE, STREAM]);
  });

  test("while it is created lets the create go on, so that it can still be cancelled", async () => {
    const abort = new AbortController();
    let answer = (): void => undefined;
    server.on(CREATE, (response, asked) => {
      answer = () => void json(201, record("starting"))(response, asked);
    });
    const run = client.stream(REQUEST, { signal: abort.signal });
    await server.until(() => count(CREATE) === 1);
    abort.abort();
    expect((await collect(run)).end).toEqual({ type: "cancelled" });
    answer();
    await run.cancel();
    expect(server.calls).toEqual([CREATE, CANCEL]);
    expect(server.closedEarly).toBe(0);
  });

  test("by a break closes the connection", async () => {
    server.on(STREAM, open(output(3, "a")));
    for await (const part of client.stream(REQUEST)) {
      expect(part.type).toBe("text");
      break;
    }
    await server.until(() => server.closedEarly === 1);
    expect(count(CANCEL)).toBe(0);
  });

  test("a prediction that is there can be read by another", async () => {
    server.on(STREAM, sse(output(3, "a") + DONE));
    const prediction = await client.create(REQUEST);
    expect((await collect(client.follow(prediction))).text).toBe("a");
    expect(count(CREATE)).toBe(1);
  });
});

test.each(["", "/", "/a/b", "/a/b/", "/a/b/v1", "/a/b/v1/"])("B086 a base that ends in '%s' is kept", async (path) => {
  const prefix = path.startsWith("/a/b") ? "/a/b" : "";
  server.on(`POST ${prefix}/v1/models/local/tiny/predictions`, json(201, record("starting")));
  const based = new Replicate({ baseUrl: server.url + path });
  expect(await based.create(REQUEST)).toMatchObject({ id: "p1" });
});

test("a run is read once", async () => {
  server.on(STREAM, sse(DONE));
  const run = client.stream(REQUEST);
  await collect(run);
  await expect(collect(run)).rejects.toThrow("read once");
});
