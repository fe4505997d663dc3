// Owns the hook: one run at a time for a component, started and stopped by events.

import { useCallback, useEffect, useRef, useState, useSyncExternalStore } from "react";

import type { Run, Streaming } from "./run.js";
import { type RunSnapshot, RunState } from "./run_state.js";

/** What a component has of its run. */
export interface UsedPrediction<Request> extends RunSnapshot {
  /** Start a run, from an event handler. One that is still going is cancelled. */
  readonly start: (request: Request) => void;
  /** Stop reading, and cancel at the server, once. */
  readonly stop: () => void;
}

/**
 * Run predictions of any client: `Replicate`, `OpenAI` or `Anthropic`, or of a function that makes runs.
 *
 * Unmounting and leaving the page end the reading; a detached prediction goes on, unless `stop` was
 * called. Text is rendered a frame at a time.
 */
export function usePrediction<Request>(
  client: Streaming<Request> | ((request: Request) => Run),
): UsedPrediction<Request> {
  const [state] = useState(() => new RunState());
  const snapshot = useSyncExternalStore(state.subscribe, state.getSnapshot, state.getSnapshot);
  const mounts = useRef(0);
  useEffect(() => {
    mounts.current += 1;
    return () => {
      mounts.current -= 1;
      // Strict mode takes a component off and puts it back at once.
      queueMicrotask(() => {
        if (mounts.current === 0) state.leave();
      });
    };
  }, [state]);
  const start = useCallback(
    (request: Request) =>
      state.start(() => (typeof client === "function" ? client(request) : client.stream(request))),
    [client, state],
  );
  const stop = useCallback(() => void state.stop(), [state]);
  return { ...snapshot, start, stop };
}
