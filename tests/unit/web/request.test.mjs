import assert from "node:assert/strict";
import { test } from "node:test";

import { RecentPredictions } from "../../../edge/web/static/recent.js";
import { readFields, serverFaults, writeFields } from "../../../edge/web/static/request.js";

test("empty fields are left out, so the server's defaults hold", () => {
  const fields = { prompt: "p", system_prompt: " ", max_tokens: " ", temperature: "", stop: "\n" };
  assert.deepEqual(readFields(fields), { input: { prompt: "p" }, faults: {} });
});

test("fields become values of the right type", () => {
  const { input, faults } = readFields({
    prompt: " kept as it is\n",
    system_prompt: "s",
    max_tokens: " 12 ",
    temperature: "0,5",
    top_p: ".9",
    top_k: "-1",
    seed: "7",
    stop: "END\n\n \n",
  });
  assert.deepEqual(faults, {});
  assert.deepEqual(input, {
    prompt: " kept as it is\n",
    system_prompt: "s",
    max_tokens: 12,
    temperature: 0.5,
    top_p: 0.9,
    top_k: -1,
    seed: 7,
    stop: ["END", " "],
  });
});

test("each fault is said at its field", () => {
  const cases = [
    ["max_tokens", "0", "At least 1."],
    ["max_tokens", "1.5", "A whole number."],
    ["max_tokens", "0x10", "Not a number."],
    ["temperature", "2.1", "At most 2."],
    ["temperature", "1.2.3", "Not a number."],
    ["temperature", "Infinity", "Not a number."],
    ["top_p", "-0.1", "At least 0."],
    ["seed", "99999999999999999999", "Too large for this page."],
    ["stop", "a\n".repeat(17), "16 at most."],
  ];
  for (const [name, text, fault] of cases) {
    assert.deepEqual(readFields({ prompt: "p", [name]: text }).faults, { [name]: fault });
  }
  assert.deepEqual(readFields({}).faults, { prompt: "Write a prompt first." });
});

test("a prediction's input fills the fields that make it", () => {
  const input = { prompt: "p", system_prompt: "s", max_tokens: 5, temperature: 0, top_k: 3, stop: ["a", "b"] };
  assert.deepEqual(readFields(writeFields(input)), { input, faults: {} });
  const fields = writeFields({
    messages: [
      { role: "system", content: "s" },
      { role: "user", content: "first" },
      { role: "user", content: "last" },
    ],
    max_new_tokens: 9,
    stop_sequences: ["x"],
  });
  assert.deepEqual(
    [fields.prompt, fields.system_prompt, fields.max_tokens, fields.stop],
    ["last", "s", "9", "x"],
  );
});

test("what the server refuses is told at the field it is about", () => {
  const faults = serverFaults([
    { field: "input.stop.0", description: "too long" },
    { field: "input.stop.1", description: "empty" },
    { field: "input.max_new_tokens", description: "too many" },
    { field: "input", description: "bad" },
    { field: "version", description: "unknown" },
  ]);
  assert.deepEqual(faults, {
    stop: "too long empty",
    max_tokens: "too many",
    form: "input: bad version: unknown",
  });
});

test("recent predictions: newest first, updated in place, bounded, and never a fault", () => {
  const kept = new Map();
  const storage = { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value) };
  const recent = new RecentPredictions(storage);
  for (let n = 0; n < 25; n += 1) recent.put({ id: `p${n}`, status: "starting" });
  recent.put({ id: "p20", status: "succeeded" });
  assert.deepEqual([recent.list().length, recent.list()[0].id, recent.list()[4]], [
    20,
    "p24",
    { id: "p20", status: "succeeded" },
  ]);
  storage.setItem("tailrace.recent", "{broken");
  assert.deepEqual(recent.list(), []);
  storage.setItem = () => {
    throw new Error("full");
  };
  recent.put({ id: "x" });
});
