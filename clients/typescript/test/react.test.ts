// @vitest-environment happy-dom
// The hook in React, in strict mode.

import { act, createElement, StrictMode, useEffect } from "react";
import { createRoot, type Root } from "react-dom/client";
import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { usePrediction, type UsedPrediction } from "../src/react.js";
import type { Run } from "../src/run.js";
import { ToldRun } from "./runs.js";

let root: Root;
let used: UsedPrediction<string>;
let runs: Map<string, ToldRun>;
let renders: number;

beforeEach(async () => {
  vi.stubGlobal("IS_REACT_ACT_ENVIRONMENT", true);
  runs = new Map();
  renders = 0;
  root = createRoot(document.createElement("div"));
  await act(async () => root.render(createElement(StrictMode, null, createElement(Probe))));
});

afterEach(async () => {
  await act(async () => root.unmount());
  vi.unstubAllGlobals();
});

function ask(request: string): Run {
  const told = new ToldRun();
  runs.set(request, told);
  return told.run;
}

function Probe(): null {
  used = usePrediction(ask);
  renders += 1;
  return null;
}

async function start(request: string): Promise<ToldRun> {
  await act(async () => used.start(request));
  const told = runs.get(request);
  if (told === undefined) throw new Error("nothing was started");
  return told;
}

/** Wait until what is rendered has this text. */
async function untilText(text: string): Promise<void> {
  await act(async () => vi.waitFor(() => expect(used.text).toBe(text)));
}

test("strict mode starts one run for one start, and reads it to the end", async () => {
  expect(used.status).toBe("idle");
  const told = await start("a");
  expect([used.status, runs.size]).toEqual(["connecting", 1]);
  await act(async () => {
    told.say("x", "y");
    told.end();
  });
  expect(used).toMatchObject({ status: "finished", text: "xy", error: null });
  expect(told.cancels).toBe(0);
});

test("text is shown while it comes", async () => {
  const told = await start("a");
  told.say("x");
  await untilText("x");
  expect(used.status).toBe("streaming");
});

test("many pieces are few renders", async () => {
  const told = await start("a");
  const before = renders;
  await act(async () => {
    for (let count = 0; count < 1000; count += 1) told.say("x");
  });
  await untilText("x".repeat(1000));
  expect(renders - before).toBeLessThan(20);
});

test("stop cancels once, however often it is clicked", async () => {
  const told = await start("a");
  await act(async () => {
    used.stop();
    used.stop();
    used.stop();
  });
  expect([used.status, told.cancels, told.isLeft]).toEqual(["cancelled", 1, true]);
});

test("a second start shows the second run only", async () => {
  const first = await start("a");
  first.say("old");
  await untilText("old");
  const second = await start("b");
  first.say("late");
  second.say("new");
  await untilText("new");
  expect([first.cancels, second.cancels]).toEqual([1, 0]);
});

test("unmounting ends the reading and cancels nothing", async () => {
  const told = await start("a");
  await act(async () => root.unmount());
  expect([told.isLeft, told.cancels]).toEqual([true, 0]);
});

test("a start in an effect, which strict mode runs twice, leaves one run that is read", async () => {
  const starts: ToldRun[] = [];
  const again = (): Run => {
    starts.push(new ToldRun());
    return (starts.at(-1) as ToldRun).run;
  };
  const Eager = (): null => {
    const { start: begin } = usePrediction(again);
    useEffect(() => begin("a"), [begin]);
    return null;
  };
  await act(async () => root.render(createElement(StrictMode, null, createElement(Eager))));
  expect(starts.map(({ cancels, isLeft }) => [cancels, isLeft])).toEqual([[1, true], [0, false]]);
});

test("start and stop stay the same functions", async () => {
  const { start: startBefore, stop: stopBefore } = used;
  const told = await start("a");
  told.say("x");
  await untilText("x");
  expect([used.start, used.stop]).toEqual([startBefore, stopBefore]);
});
