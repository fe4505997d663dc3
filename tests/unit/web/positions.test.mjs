import assert from "node:assert/strict";
import { test } from "node:test";

import { isNewer, parsePosition } from "../../../edge/web/static/positions.js";
import { RateMeter } from "../../../edge/web/static/rate_meter.js";

test("ids are positions: sequence, then part", () => {
  assert.deepEqual(parsePosition("1796065285:12"), { sequence: 12, part: 0 });
  assert.deepEqual(parsePosition("1796065285:12.3"), { sequence: 12, part: 3 });
  for (const text of ["", "12", "a:b", "1:2.", "1:2.3.4", " 1:2"]) assert.equal(parsePosition(text), null);
});

test("newer is strictly further on; what is no position is always new", () => {
  const order = ["5:1", "5:2.1", "5:2.2", "5:3", "5:10"];
  order.forEach((id, at) => {
    for (const last of order.slice(0, at)) assert.ok(isNewer(id, last), `${id} after ${last}`);
    for (const last of order.slice(at)) assert.ok(!isNewer(id, last), `${id} not after ${last}`);
  });
  assert.ok(isNewer("5:1", "") && isNewer("", "5:1") && isNewer("x", "5:1"));
});

test("the rate is that of the last seconds, and replayed tokens count for the total only", () => {
  const meter = new RateMeter();
  meter.add(5000, 0, { replayed: true });
  assert.equal(meter.rate(), null);
  for (let n = 0; n <= 100; n += 1) meter.add(2, n * 100);
  assert.equal(meter.total, 5202);
  assert.ok(Math.abs(meter.rate() - 20) < 0.5);
  for (let n = 1; n <= 100; n += 1) meter.add(1, 10_000 + n * 100);
  assert.ok(Math.abs(meter.rate() - 10) < 0.5, "what was long ago is forgotten");
  meter.reset();
  assert.deepEqual([meter.total, meter.rate()], [0, null]);
});

test("two tokens at once are no rate yet", () => {
  const meter = new RateMeter();
  meter.add(1, 0);
  meter.add(1, 10);
  assert.equal(meter.rate(), null);
});
