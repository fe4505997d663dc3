// Owns one run: its parts, read once, and its cancel, sent once.

import { failure, RequestError } from "./failure.js";
import { isEnd, type Part } from "./parts.js";

/** What a run is made of. */
export interface RunWork {
  /** Yield the parts until the end or the signal; it throws nothing. */
  parts(signal: AbortSignal): AsyncIterable<Part>;
  /** Have the server end it; absent where leaving does so. */
  cancel?(): Promise<void>;
}

/**
 * One generation. Iterate it once.
 *
 * `leave` ends the reading; what that does at the server is the API's: a Replicate prediction and a
 * resumable stream go on, all else is cancelled. `cancel` ends it at the server in any case.
 */
export class Run implements AsyncIterable<Part> {
  readonly #work: RunWork;
  readonly #reading = new AbortController();
  #isRead = false;
  #isOver = false;
  #cancelling: Promise<void> | null = null;

  /** `signal` does what `leave` does. */
  constructor(work: RunWork, signal?: AbortSignal) {
    this.#work = work;
    if (signal === undefined) return;
    if (signal.aborted) this.leave();
    else signal.addEventListener("abort", () => this.leave(), { once: true, signal: this.#reading.signal });
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Part, void, undefined> {
    if (this.#isRead) throw new RequestError(failure("A run can be read once."));
    this.#isRead = true;
    try {
      for await (const part of this.#work.parts(this.#reading.signal)) {
        if (this.#reading.signal.aborted) {
          yield { type: "cancelled" };
          return;
        }
        if (isEnd(part)) this.#isOver = part.type !== "truncated";
        yield part;
        if (isEnd(part)) return;
      }
    } finally {
      this.leave();
    }
  }

  /** Stop reading. */
  leave(): void {
    this.#reading.abort();
  }

  /**
   * Stop reading, and have the server stop too: at once, or as soon as it has said what to cancel.
   *
   * Any number of calls send one cancel; after an end that the server told none is sent. Rejects with RequestError if the
   * server could not be told.
   */
  cancel(): Promise<void> {
    this.#cancelling ??= this.#isOver ? Promise.resolve() : (this.#work.cancel?.() ?? Promise.resolve());
    this.leave();
    return this.#cancelling;
  }
}

/** Whatever makes runs of requests: one of the clients. */
export interface Streaming<Request> {
  stream(request: Request, options?: { readonly signal?: AbortSignal }): Run;
}
