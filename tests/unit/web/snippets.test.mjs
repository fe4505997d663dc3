import assert from "node:assert/strict";
import { test } from "node:test";

import { predictionSnippets, pythonLiteral, requestSnippets, shellQuote } from "../../../edge/web/static/snippets.js";

test("plain words stay plain and anything else is quoted", () => {
  assert.equal(shellQuote("http://h:1/v1/a-b_c"), "http://h:1/v1/a-b_c");
  assert.equal(shellQuote(""), "''");
  assert.equal(shellQuote("it's $HOME `x` \\"), "'it'\\''s $HOME `x` \\'");
});

test("python literals", () => {
  assert.equal(pythonLiteral({ a: true, b: null, c: [], d: {} }), '{\n    "a": True,\n    "b": None,\n    "c": [],\n    "d": {},\n}');
  assert.equal(pythonLiteral([1, "x"], "  "), '[\n      1,\n      "x",\n  ]');
});

test("a prediction's commands name its own URLs; only those that need it name a token", () => {
  const urls = { get: "http://h/g", stream: "http://h/s", cancel: "http://h/c" };
  const [get, stream, cancel] = predictionSnippets({ urls }, true).map(({ code }) => code);
  assert.equal(get, 'curl -s http://h/g \\\n  -H "Authorization: Bearer $REPLICATE_API_TOKEN"');
  assert.equal(stream, "curl -N http://h/s \\\n  -H 'Accept: text/event-stream'");
  assert.match(cancel, /^curl -s -X POST http:\/\/h\/c/);
  assert.ok(predictionSnippets({ urls }, false).every(({ code }) => !code.includes("TOKEN")));
});

test("with a token the code reads it from the environment", () => {
  const codes = requestSnippets("http://h", "a/b", { prompt: "p" }, true).map(({ code }) => code);
  assert.ok(codes.every((code) => code.includes("REPLICATE_API_TOKEN")));
  assert.match(codes[1], /^import os\n/);
});
