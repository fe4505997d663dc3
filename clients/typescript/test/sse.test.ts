// The reader of server-sent events against the cases that all our readers share, cut everywhere.

import { readFileSync } from "node:fs";

import { describe, expect, test } from "vitest";

import { EventTooLarge, readEvents, type SseEvent, SseReader, StreamSilent } from "../src/sse.js";
import { bodyOf, bytes, everyCut } from "./streams.js";

interface ParseCase {
  readonly name: string;
  readonly stream?: string;
  readonly stream_hex?: string;
  readonly events: readonly { readonly event: string; readonly data: string; readonly id: string }[];
  readonly last_event_id: string;
  readonly retry_ms: number | null;
}

const VECTORS = new URL("../../../tests/vectors/sse.json", import.meta.url);
const CASES = (JSON.parse(readFileSync(VECTORS, "utf8")) as { parse: ParseCase[] }).parse;

function read(chunks: readonly Uint8Array[]): { reader: SseReader; events: SseEvent[] } {
  const reader = new SseReader();
  return { reader, events: chunks.flatMap((chunk) => reader.feed(chunk)) };
}

function eventsOf(text: string): SseEvent[] {
  return read([bytes(text)]).events;
}

/** What every cut of a stream must bring: the same as the whole. */
function expectSameAtEveryCut(data: Uint8Array, expected: readonly Partial<SseEvent>[]): void {
  for (const chunks of everyCut(data)) {
    expect(read(chunks).events).toMatchObject(expected);
  }
}

describe.each(CASES)("$name", (given) => {
  test("is read alike wherever it is cut", () => {
    const data = given.stream_hex === undefined ? bytes(given.stream ?? "") : Buffer.from(given.stream_hex, "hex");
    const expected = given.events.map(({ id, ...event }) => ({ ...event, lastEventId: id }));
    for (const chunks of everyCut(new Uint8Array(data))) {
      const { reader, events } = read(chunks);
      expect(events).toEqual(expected);
      expect(reader.lastEventId).toBe(given.last_event_id);
      expect(reader.retryMs).toBe(given.retry_ms);
    }
  });
});

test("B002 an empty data line adds a line feed", () => {
  expectSameAtEveryCut(bytes("data: one\ndata: two\ndata:\ndata: three\n\n"), [{ data: "one\ntwo\n\nthree" }]);
});

test("B001 a text of line feeds alone arrives", () => {
  expect(eventsOf("data: \ndata: \n\n")).toMatchObject([{ data: "\n" }]);
});

test("B004 Unicode line ends are text", () => {
  const text = "x\u2028y\u2029\u0085\x0b\x0c\x1cz";
  expectSameAtEveryCut(bytes(`data: ${text}\n\n`), [{ data: text }]);
});

test("B012 only one leading blank is the format's", () => {
  expectSameAtEveryCut(bytes("data:     return 1\n\ndata:x\n\n"), [{ data: "    return 1" }, { data: "x" }]);
});

test("B013 a byte order mark that is cut over chunks is none of the text", () => {
  const stream = new Uint8Array([0xef, 0xbb, 0xbf, ...bytes("data: a\n\ndata: b\n\n")]);
  expectSameAtEveryCut(stream, [{ data: "a" }, { data: "b" }]);
});

test("B014 an id with NUL leaves the id before it", () => {
  expectSameAtEveryCut(bytes("id: 5\nid: x\0y\ndata: t\n\n"), [{ data: "t", lastEventId: "5" }]);
});

const LINES = ["event: output", "id: 1:2", "data: 안녕 漢😀", "data:", ": ping", "data:  둘", ""];

test.each([
  ["LF", "\n"],
  ["CR", "\r"],
  ["CRLF", "\r\n"],
])("line ends of %s, in Korean and emoji", (_, end) => {
  const stream = [...LINES, ...LINES, ""].join(end);
  const event = { event: "output", data: "안녕 漢😀\n\n 둘", lastEventId: "1:2" };
  expectSameAtEveryCut(bytes(stream), [event, event]);
});

test("an event that is cut off is dropped, and so is its id", () => {
  const { reader, events } = read([bytes("id: 1\ndata: a\n\nid: 2\ndata: b\n")]);
  expect(events).toMatchObject([{ data: "a" }]);
  expect(reader.lastEventId).toBe("1");
});

test("random streams are read alike in random pieces", () => {
  const random = seeded(20_261_130);
  const pick = <T>(of: readonly T[]): T => of[Math.floor(random() * of.length)] as T;
  const pieces = ["data", "event", "id", "retry", ":", " ", "\r", "\n", "\r\n", "漢", "😀", "\ufeff", "\0", "7", "a"];
  for (let round = 0; round < 300; round += 1) {
    const data = bytes(Array.from({ length: 40 }, () => pick(pieces)).join(""));
    const whole = read([data]);
    const chunks: Uint8Array[] = [];
    for (let at = 0; at < data.length; ) {
      const size = 1 + Math.floor(random() * 5);
      chunks.push(data.slice(at, at + size));
      at += size;
    }
    const parts = read(chunks);
    expect(parts.events).toEqual(whole.events);
    expect(parts.reader.lastEventId).toBe(whole.reader.lastEventId);
    expect(parts.reader.retryMs).toBe(whole.reader.retryMs);
  }
});

test("an event that never ends is an error, not a full memory", () => {
  const reader = new SseReader(100);
  expect(() => reader.feed(bytes(`data: ${"x".repeat(200)}`))).toThrow(EventTooLarge);
  const lines = new SseReader(100);
  expect(() => lines.feed(bytes("data: x\n".repeat(50)))).toThrow("more than 100 characters");
});

test("keep-alives never add up to an event that is too large", () => {
  const reader = new SseReader(20);
  for (let count = 0; count < 100; count += 1) reader.feed(bytes(": keep-alive\n"));
  expect(reader.feed(bytes("data: a\n\n"))).toMatchObject([{ data: "a" }]);
});

test("a body is read to its end", async () => {
  const events: SseEvent[] = [];
  for await (const event of readEvents(bodyOf([bytes("data: a\n\nda"), bytes("ta: b\n\ndata: c")]))) {
    events.push(event);
  }
  expect(events.map((event) => event.data)).toEqual(["a", "b"]);
});

test("leaving early cancels the body", async () => {
  let cancelled = false;
  const body = new ReadableStream<Uint8Array>({
    start: (controller) => controller.enqueue(bytes("data: a\n\n")),
    cancel: () => {
      cancelled = true;
    },
  });
  for await (const event of readEvents(body)) {
    expect(event.data).toBe("a");
    break;
  }
  expect(cancelled).toBe(true);
});

test("an abort ends the reading with its reason", async () => {
  const abort = new AbortController();
  const events = readEvents(new ReadableStream(), new SseReader(), { signal: abort.signal });
  const next = events.next();
  abort.abort(new Error("enough"));
  await expect(next).rejects.toThrow("enough");
});

test("a connection that says nothing at all is noticed", async () => {
  const events = readEvents(new ReadableStream(), new SseReader(), { silenceMs: 1 });
  await expect(events.next()).rejects.toThrow(StreamSilent);
});

/** A generator of numbers in 0 … 1 (mulberry32), so that a failure can be repeated. */
function seeded(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}
