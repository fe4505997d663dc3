import assert from "node:assert/strict";
import { test } from "node:test";

import {
  formatAge,
  formatCount,
  formatDuration,
  formatMoment,
  formatRate,
  isTerminal,
  joinOutput,
  phaseOf,
  secondsBetween,
  shorten,
} from "../../../edge/web/static/format.js";

test("every status has a phase, and prefill ends with the first text", () => {
  const table = [
    ["starting", false, "queued"],
    ["processing", false, "prefill"],
    ["processing", true, "streaming"],
    ["succeeded", true, "done"],
    ["failed", false, "failed"],
    ["canceled", true, "canceled"],
    ["aborted", false, "canceled"],
    ["something new", false, "idle"],
  ];
  for (const [status, hasOutput, phase] of table) assert.equal(phaseOf(status, hasOutput), phase);
  assert.deepEqual(["starting", "processing", "succeeded", "canceled"].map(isTerminal), [false, false, true, true]);
});

test("durations read well at every size and at every border", () => {
  const table = [
    [0, "0 ms"],
    [0.0854, "85 ms"],
    [0.9994, "999 ms"],
    [0.9996, "1.00 s"],
    [9.994, "9.99 s"],
    [9.996, "10.0 s"],
    [59.94, "59.9 s"],
    [59.96, "1 min 00 s"],
    [185, "3 min 05 s"],
    [3599.6, "1 h 00 min"],
    [7380, "2 h 03 min"],
    [-1, "0 ms"],
    [null, "–"],
    [undefined, "–"],
    [NaN, "–"],
  ];
  for (const [seconds, text] of table) assert.equal(formatDuration(seconds), text);
});

test("counts, rates and ages", () => {
  assert.deepEqual([0, 999, 1000, 1234567, null].map(formatCount), ["0", "999", "1\u2009000", "1\u2009234\u2009567", "–"]);
  assert.deepEqual([0, 3.14159, 99.94, 1925, undefined].map(formatRate), ["–", "3.1", "99.9", "1\u2009925", "–"]);
  const ages = [0, 44, 46, 600, 3569, 3571, 86400, 200000].map(formatAge);
  assert.deepEqual(ages, ["just now", "just now", "1 min ago", "10 min ago", "59 min ago", "1 h ago", "1 day ago", "2 days ago"]);
});

test("a moment has its date only when it is not today's", () => {
  const now = new Date(2026, 10, 30, 12, 0, 0);
  const at = new Date(2026, 10, 30, 9, 5, 7, 42);
  assert.equal(formatMoment(at.toISOString(), now), "09:05:07.042");
  assert.equal(formatMoment(at.toISOString(), new Date(2026, 11, 1)), "2026-11-30 09:05:07.042");
  assert.deepEqual([null, "", "nonsense"].map((text) => formatMoment(text, now)), ["–", "–", "–"]);
  assert.equal(secondsBetween("2026-11-30T18:47:08.000000Z", "2026-11-30T18:47:09.500000Z"), 1.5);
  assert.equal(secondsBetween("2026-11-30T18:47:08Z", null), null);
});

test("output of every shape is one text", () => {
  assert.equal(joinOutput(["h", "ttps://a.b", "\n"]), "https://a.b\n");
  assert.equal(joinOutput("text"), "text");
  assert.deepEqual([null, undefined, []].map(joinOutput), ["", "", ""]);
});

test("shortened text is one line and cuts no character in half", () => {
  assert.equal(shorten("  a\n b  ", 10), "a b");
  assert.equal(shorten("🙂🙂🙂🙂", 3), "🙂🙂…");
});
