import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { pauseMs, PredictionStream, streamUrl } from "../../../edge/web/static/stream.js";

const URL_OF_STREAM = "http://h.example/v1/streams/token";

let sources;
let timers;
let told;
let ended;

class FakeSource extends EventTarget {
  readyState = 1;

  constructor(url) {
    super();
    this.url = url;
    sources.push(this);
  }

  say(type, lastEventId, data) {
    this.dispatchEvent(Object.assign(new Event(type), { lastEventId, data }));
  }

  breakOff(readyState) {
    this.readyState = readyState;
    this.dispatchEvent(new Event("error"));
  }

  close() {
    this.readyState = 2;
  }
}

const world = {
  EventSource: FakeSource,
  setTimeout: (call, delay) => timers.push({ call, delay }),
  clearTimeout: () => {},
  random: () => 1,
};

function open() {
  const names = ["start", "output", "tokens", "logs", "error", "done", "connected", "interrupted"];
  const handlers = Object.fromEntries(names.map((name) => [name, (value) => told.push([name, value])]));
  const stream = new PredictionStream(URL_OF_STREAM, handlers, async () => ended(), world);
  stream.open();
  return stream;
}

const turn = () => new Promise((resolve) => setImmediate(resolve));

beforeEach(() => {
  sources = [];
  timers = [];
  told = [];
  ended = () => false;
});

test("events come as values, and done closes", () => {
  const stream = open();
  sources[0].say("start", "5:2", '{"started_at":"t","input_token_count":7}');
  sources[0].say("output", "5:3", " a\nb");
  sources[0].say("tokens", "5:3", "2");
  sources[0].say("logs", "5:4", "line");
  sources[0].say("error", "5:4.1", '{"detail":"broke"}');
  sources[0].say("done", "5:5", '{"reason":"error"}');
  assert.deepEqual(told, [
    ["start", { started_at: "t", input_token_count: 7 }],
    ["output", " a\nb"],
    ["tokens", 2],
    ["logs", "line"],
    ["error", "broke"],
    ["done", "error"],
  ]);
  assert.ok(stream.isOver && sources[0].readyState === 2);
});

test("what comes twice is shown once", () => {
  open();
  sources[0].say("output", "5:3", "a");
  sources[0].say("tokens", "5:3", "1");
  for (let again = 0; again < 2; again += 1) {
    sources[0].say("output", "5:3", "a");
    sources[0].say("tokens", "5:3", "1");
    sources[0].say("output", "5:4", "b");
  }
  assert.deepEqual(told, [["output", "a"], ["tokens", 1], ["output", "b"]]);
});

test("a broken connection is left to the browser", async () => {
  open();
  sources[0].breakOff(0);
  await turn();
  assert.deepEqual([told, sources.length, timers.length], [[["interrupted", undefined]], 1, 0]);
});

test("when the browser gives up, a new source goes on after the last event", async () => {
  open();
  sources[0].say("output", "5:3", "a");
  sources[0].breakOff(2);
  await turn();
  assert.equal(timers[0].delay, 500);
  timers[0].call();
  assert.equal(sources[1].url, `${URL_OF_STREAM}?events=all&last_event_id=5%3A3`);
  sources[1].say("output", "5:4", "b");
  assert.deepEqual(told.map(([, value]) => value), ["a", undefined, "b"]);
});

test("pauses grow while nothing comes, and begin anew after an event", async () => {
  open();
  for (let n = 0; n < 3; n += 1) {
    sources.at(-1).breakOff(2);
    await turn();
    timers.at(-1).call();
  }
  assert.deepEqual(timers.map(({ delay }) => delay), [500, 1000, 2000]);
  sources.at(-1).say("output", "5:3", "a");
  sources.at(-1).breakOff(2);
  await turn();
  assert.equal(timers.at(-1).delay, 500);
});

test("a prediction that has ended ends the stream instead of opening it for ever", async () => {
  const stream = open();
  ended = () => true;
  sources[0].breakOff(2);
  await turn();
  assert.deepEqual(told.at(-1), ["done", null]);
  assert.ok(stream.isOver && timers.length === 0);
});

test("when the API is out of reach too, it goes on trying", async () => {
  open();
  ended = () => {
    throw new Error("unreachable");
  };
  sources[0].breakOff(2);
  await turn();
  assert.equal(timers.length, 1);
});

test("after close nothing is told and nothing is opened", async () => {
  const stream = open();
  stream.close();
  sources[0].say("output", "5:3", "a");
  sources[0].breakOff(2);
  await turn();
  assert.deepEqual([told, sources.length, timers.length], [[], 1, 0]);
});

test("hurry opens at once what waits, and only that", async () => {
  const stream = open();
  stream.hurry();
  assert.equal(sources.length, 1);
  sources[0].breakOff(2);
  await turn();
  stream.hurry();
  assert.equal(sources.length, 2);
});

test("data that is no JSON is no fault", () => {
  open();
  sources[0].say("error", "5:3", "plain");
  sources[0].say("done", "5:4", "");
  assert.deepEqual(told, [["error", "plain"], ["done", null]]);
});

test("pauses are bounded and spread", () => {
  assert.deepEqual([pauseMs(0, 0), pauseMs(0, 1), pauseMs(50, 1)], [250, 500, 10_000]);
  assert.equal(streamUrl(`${URL_OF_STREAM}?x=1`, ""), `${URL_OF_STREAM}?x=1&events=all`);
});
