// Runs whose parts a test says one by one.

import type { End, Part } from "../src/parts.js";
import { Run } from "../src/run.js";

/** A run and what the test does with it. */
export class ToldRun {
  cancels = 0;
  /** What the next cancel does. */
  onCancel: () => Promise<void> = () => Promise.resolve();
  readonly run: Run;
  #signal: AbortSignal | null = null;
  #parts: Part[] = [];
  #wake = (): void => undefined;

  constructor() {
    const cancel = (): Promise<void> => {
      this.cancels += 1;
      return this.onCancel();
    };
    this.run = new Run({ parts: (signal) => this.#read(signal), cancel });
  }

  /** Whether its reader has gone, or has not come yet. */
  get isLeft(): boolean {
    return this.#signal?.aborted ?? true;
  }

  /** Have it say text. */
  say(...texts: readonly string[]): void {
    for (const text of texts) this.#parts.push({ type: "text", text });
    this.#wake();
  }

  end(end: End = { type: "finished", reason: "stop", usage: null, calls: [] }): void {
    this.#parts.push(end);
    this.#wake();
  }

  async *#read(signal: AbortSignal): AsyncGenerator<Part, void, undefined> {
    this.#signal = signal;
    signal.addEventListener("abort", () => this.#wake());
    for (;;) {
      // Parts that are there already come although nobody listens any more: what a view must not show.
      for (const part of this.#parts.splice(0)) yield part;
      if (signal.aborted) return;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }
}
