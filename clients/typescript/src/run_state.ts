// Owns what a user sees of the latest run: its status and text, for any view that can subscribe.
//
// A run that is not the latest one changes nothing any more, whatever still comes from it.

import { type Failure, RequestError, failure } from "./failure.js";
import { FrameBatch } from "./frames.js";
import type { End } from "./parts.js";
import type { Run } from "./run.js";

/** Where a run stands. */
export type RunStatus = "idle" | "connecting" | "streaming" | End["type"];

/** What is shown. A new object whenever anything changed. */
export interface RunSnapshot {
  readonly status: RunStatus;
  readonly text: string;
  /** How it ended; null before. */
  readonly end: End | null;
  /** What went wrong: the end's failure, or that of a cancel that the server did not take. */
  readonly error: Failure | null;
}

const IDLE: RunSnapshot = { status: "idle", text: "", end: null, error: null };
const CONNECTING: RunSnapshot = { ...IDLE, status: "connecting" };

/** The latest run of one place in a page. */
export class RunState {
  readonly #listeners = new Set<() => void>();
  readonly #batch = new FrameBatch(() => this.#flush());
  #snapshot = IDLE;
  #run: Run | null = null;
  #pending: string[] = [];

  /** What is shown now. */
  readonly getSnapshot = (): RunSnapshot => this.#snapshot;

  /** Have `listener` called after each change; the function that is returned ends that. */
  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  /** Show a new run. One that is still going is cancelled. */
  start(makeRun: () => Run): void {
    void this.stop();
    const run = makeRun();
    this.#run = run;
    this.#show(CONNECTING);
    void this.#read(run);
  }

  /** Stop the run and cancel it, once. */
  async stop(): Promise<void> {
    const run = this.#run;
    if (run === null) return;
    this.#run = null;
    this.#end({ type: "cancelled" });
    const shown = this.#snapshot;
    try {
      await run.cancel();
    } catch (error) {
      // Only if nothing else has been started since.
      if (this.#snapshot === shown) this.#show({ ...shown, error: failureOf(error) });
    }
  }

  /** Stop reading. The run goes on at the server if it is one that can. */
  leave(): void {
    const run = this.#run;
    if (run === null) return;
    this.#run = null;
    run.leave();
    this.#end({ type: "truncated", failure: null });
  }

  async #read(run: Run): Promise<void> {
    let end: End = { type: "truncated", failure: null };
    try {
      for await (const part of run) {
        if (this.#run !== run) return;
        if (part.type === "text") {
          this.#pending.push(part.text);
          this.#batch.request();
        } else if (part.type !== "tool_calls") {
          end = part;
        }
      }
    } catch (error) {
      end = { type: "error", failure: failureOf(error) };
    }
    if (this.#run !== run) return;
    this.#run = null;
    this.#end(end);
  }

  #flush(): void {
    if (this.#pending.length === 0) return;
    this.#show({ ...this.#snapshot, status: "streaming", text: this.#takeText() });
  }

  #end(end: End): void {
    const error = end.type === "error" || end.type === "truncated" ? end.failure : null;
    this.#show({ status: end.type, text: this.#takeText(), end, error });
  }

  #takeText(): string {
    this.#batch.clear();
    const text = this.#snapshot.text + this.#pending.join("");
    this.#pending = [];
    return text;
  }

  #show(snapshot: RunSnapshot): void {
    this.#snapshot = snapshot;
    for (const listener of [...this.#listeners]) listener();
  }
}

function failureOf(error: unknown): Failure {
  return error instanceof RequestError ? error.failure : failure(String(error));
}
