// @vitest-environment happy-dom
// What is shown of a run: the latest one only, a frame at a time, in hidden pages too.

import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";

import { failure, RequestError } from "../src/failure.js";
import { type RunSnapshot, RunState } from "../src/run_state.js";
import { ToldRun } from "./runs.js";

let state: RunState;
let frames: (() => void)[];

beforeEach(() => {
  vi.useFakeTimers();
  frames = [];
  vi.stubGlobal("requestAnimationFrame", (call: () => void) => frames.push(call));
  vi.stubGlobal("cancelAnimationFrame", (handle: number) => void (frames[handle - 1] = () => undefined));
  state = new RunState();
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
});

function started(): ToldRun {
  const told = new ToldRun();
  state.start(() => told.run);
  return told;
}

function shown(): Pick<RunSnapshot, "status" | "text"> {
  const { status, text } = state.getSnapshot();
  return { status, text };
}

/** Let all that is ready happen, timers and frames not. */
async function settle(): Promise<void> {
  await vi.advanceTimersByTimeAsync(0);
}

function nextFrame(): void {
  for (const call of frames.splice(0)) call();
}

describe("showing", () => {
  test("goes from idle over connecting and streaming to the end", async () => {
    expect(shown()).toEqual({ status: "idle", text: "" });
    const told = started();
    expect(shown()).toEqual({ status: "connecting", text: "" });
    told.say("a");
    await settle();
    nextFrame();
    expect(shown()).toEqual({ status: "streaming", text: "a" });
    told.say("b");
    told.end();
    await settle();
    expect(shown()).toEqual({ status: "finished", text: "ab" });
    expect(state.getSnapshot().end).toMatchObject({ type: "finished", reason: "stop" });
  });

  test("is once a frame, however many pieces come", async () => {
    const told = started();
    const listener = vi.fn();
    state.subscribe(listener);
    told.say(..."abcdefgh");
    await settle();
    expect(listener).not.toHaveBeenCalled();
    nextFrame();
    expect(listener).toHaveBeenCalledTimes(1);
    expect(shown().text).toBe("abcdefgh");
  });

  test("does not wait for frames in a hidden page", async () => {
    vi.spyOn(document, "visibilityState", "get").mockReturnValue("hidden");
    const told = started();
    told.say("a");
    await settle();
    await settle();
    expect(shown().text).toBe("a");
    expect(frames).toEqual([]);
  });

  test("does not hang on a page that is hidden between a piece and its frame", async () => {
    const told = started();
    told.say("a");
    await settle();
    expect(shown().text).toBe("");
    await vi.advanceTimersByTimeAsync(1000); // no frame ever comes
    expect(shown().text).toBe("a");
    nextFrame();
    expect(shown()).toEqual({ status: "streaming", text: "a" });
  });

  test("tells errors and truncation with what came", async () => {
    const broke = failure("broke");
    const first = started();
    first.say("a");
    first.end({ type: "error", failure: broke });
    await settle();
    expect(state.getSnapshot()).toMatchObject({ status: "error", text: "a", error: broke });
    const second = started();
    expect(state.getSnapshot()).toMatchObject({ status: "connecting", text: "", error: null, end: null });
    second.end({ type: "truncated", failure: null });
    await settle();
    expect(state.getSnapshot()).toMatchObject({ status: "truncated", error: null });
  });
});

describe("stopping", () => {
  test("B055 cancels once, keeps the text and is shown at once", async () => {
    const told = started();
    told.say("a");
    await settle();
    void state.stop();
    void state.stop();
    expect(shown()).toEqual({ status: "cancelled", text: "a" });
    await settle();
    expect([told.cancels, told.isLeft]).toEqual([1, true]);
  });

  test("shows nothing that comes after", async () => {
    const told = started();
    told.say("a");
    await settle();
    void state.stop();
    told.say("late");
    told.end();
    await settle();
    nextFrame();
    await vi.advanceTimersByTimeAsync(1000);
    expect(shown()).toEqual({ status: "cancelled", text: "a" });
  });

  test("after the end, and before any start, cancels nothing", async () => {
    await state.stop();
    const told = started();
    told.end();
    await settle();
    await state.stop();
    expect([shown().status, told.cancels]).toEqual(["finished", 0]);
  });

  test("tells when the server could not be told", async () => {
    const told = started();
    const away = failure("away");
    told.onCancel = () => Promise.reject(new RequestError(away));
    await state.stop();
    expect(state.getSnapshot()).toMatchObject({ status: "cancelled", error: away });
  });

  test("does not tell it over the next run", async () => {
    const told = started();
    told.onCancel = () => Promise.reject(new RequestError(failure("away")));
    const stopped = state.stop();
    started();
    await stopped;
    expect(state.getSnapshot()).toMatchObject({ status: "connecting", error: null });
  });
});

describe("starting again", () => {
  test("cancels the run before, whose late text never shows", async () => {
    const first = started();
    first.say("old");
    await settle();
    const second = started();
    first.say("late");
    second.say("new");
    first.end();
    await settle();
    nextFrame();
    expect(shown()).toEqual({ status: "streaming", text: "new" });
    expect([first.cancels, second.cancels]).toEqual([1, 0]);
  });

  test("forgets text that waited for a frame", async () => {
    const first = started();
    first.say("old");
    await settle();
    started();
    nextFrame();
    await vi.advanceTimersByTimeAsync(1000);
    expect(shown()).toEqual({ status: "connecting", text: "" });
  });
});

test("leaving ends the reading and cancels nothing", async () => {
  const told = started();
  told.say("a");
  await settle();
  state.leave();
  await settle();
  expect([told.cancels, told.isLeft, shown().text]).toEqual([0, true, "a"]);
});
