import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { Api, ApiError, clockOffset, Unreachable } from "../../../edge/web/static/api.js";

let calls;
let answers;
let storage;
let asked;

class MemoryStorage {
  #kept = new Map();

  getItem(key) {
    return this.#kept.get(key) ?? null;
  }

  setItem(key, value) {
    this.#kept.set(key, value);
  }
}

function answer(status, body, headers = {}) {
  const text = typeof body === "string" ? body : JSON.stringify(body);
  return new Response(text, { status, headers });
}

function api(prefix = "") {
  const fetch = async (url, options) => {
    calls.push([options.method, url, options.headers.authorization ?? null, options.body ?? null]);
    const next = answers.shift();
    if (next === undefined) throw new TypeError("network error");
    return next;
  };
  const askForToken = async (wasRefused) => {
    asked.push(wasRefused);
    return ` token${asked.length} `;
  };
  return new Api(prefix, askForToken, { fetch, storage });
}

beforeEach(() => {
  calls = [];
  answers = [];
  asked = [];
  storage = new MemoryStorage();
});

test("without tokens nothing is sent but the call, below the prefix", async () => {
  answers = [answer(200, { id: "x" })];
  assert.deepEqual(await api("/llm").getPrediction("x"), { id: "x" });
  assert.deepEqual(calls, [["GET", "/llm/v1/predictions/x", null, null]]);
});

test("a 401 asks for a token and sends the same call again, until it is right", async () => {
  answers = [answer(401, {}), answer(401, {}), answer(201, { id: "x" })];
  const one = api();
  await one.createPrediction("a/b", { prompt: "p" });
  assert.deepEqual(asked, [false, true]);
  assert.deepEqual(calls.map((call) => call[2]), [null, "Bearer token1", "Bearer token2"]);
  assert.deepEqual(new Set(calls.map((call) => call[3])), new Set(['{"input":{"prompt":"p"}}']));
  assert.ok(one.hasToken);
});

test("the token is there for the next page of the tab", async () => {
  answers = [answer(401, {}), answer(200, {}), answer(200, {})];
  await api().getPrediction("x");
  await api().getPrediction("y");
  assert.equal(calls.at(-1)[2], "Bearer token1");
});

test("a problem becomes an error with its detail and fields", async () => {
  answers = [answer(422, { title: "T", detail: "D", invalid_fields: [{ field: "input.seed" }] })];
  await assert.rejects(api().createPrediction("a/b", {}), (error) => {
    assert.ok(error instanceof ApiError);
    assert.deepEqual([error.status, error.message, error.fields.length], [422, "D", 1]);
    return true;
  });
  answers = [answer(502, "<html>a proxy's page")];
  await assert.rejects(api().getPrediction("x"), /The server answered 502/);
  await assert.rejects(api().getPrediction("x"), Unreachable);
});

test("a cancel goes to this origin and prefix, whatever public base the URLs name", async () => {
  answers = [answer(200, {}), answer(200, {})];
  const urls = (base) => ({ urls: { cancel: `${base}/v1/predictions/x/cancel` } });
  await api("/llm").cancelPrediction(urls("https://public.example/v1/llm"));
  await api("").cancelPrediction(urls("https://public.example"));
  assert.deepEqual(calls.map((call) => call[1]), ["/llm/v1/predictions/x/cancel", "/v1/predictions/x/cancel"]);
  assert.deepEqual(calls.map((call) => call[0]), ["POST", "POST"]);
});

test("a server without deliveries has none", async () => {
  answers = [answer(404, {}), answer(501, {}), answer(200, { deliveries: [{ event: "start" }] })];
  const one = api();
  assert.deepEqual(await one.listWebhookDeliveries("x"), []);
  assert.deepEqual(await one.listWebhookDeliveries("x"), []);
  assert.equal((await one.listWebhookDeliveries("x")).length, 1);
});

test("the server's clock counts when it is far from ours", async () => {
  assert.equal(clockOffset(10_000, 10_400), 0);
  assert.equal(clockOffset(100_000, 10_000), 90_500);
  answers = [answer(200, {}, { date: new Date(Date.now() + 3_600_000).toUTCString() })];
  const one = api();
  await one.getPrediction("x");
  assert.ok(Math.abs(one.now() - Date.now() - 3_600_000) < 2000);
});
