// Owns following a stream to its end: reading it, and going on where it was cut if the server lets us.
//
// What each API says is its decoder's; how a connection is made is its source's. One decoder reads all
// connections of a stream: each goes on after the last event, so what it has of a tool call stays.
// Nothing is ever passed on twice: a connection that has brought something without an id is not resumed.

import { pause, pauseMs } from "./backoff.js";
import { brokenBy, failure, type Failure, readFailure, RequestError } from "./failure.js";
import { type End, isEnd, type Part } from "./parts.js";
import { EventTooLarge, readEvents, type SseEvent, SseReader } from "./sse.js";

/** What a stream's events mean. */
export interface Decoder {
  /** Return the parts of an event; nothing is asked after an end. */
  take(event: SseEvent): readonly Part[];
  /** Return the end of a stream that closes here; null if it is truncated. */
  closed(): End | null;
}

/** Where a stream comes from. */
export interface Source {
  /** Connect: from the start when `lastEventId` is empty. Throws RequestError and the signal's reason. */
  open(lastEventId: string, signal: AbortSignal): Promise<Response>;
  /** Whether `open` may be called again; never for one that creates. */
  canReopen(): boolean;
  /** Return what is left of a stream that has no events any more; null if nobody can tell. */
  settle?(text: string, signal: AbortSignal): Promise<readonly Part[] | null>;
}

/** How to follow. */
export interface FollowOptions {
  /** Tries in a row that bring no event, before a stream counts as truncated. The default is 10. */
  readonly reconnects?: number | undefined;
  /** Longest silence of a connection, keep-alives included; 0 for any. The default is 60 s. */
  readonly silenceMs?: number | undefined;
  /** Longest event. */
  readonly maxEventLength?: number | undefined;
}

const RECONNECTS = 10;
const SILENCE_MS = 60_000;
// Whatever the server asks for: somebody is looking at the page.
const LONGEST_PAUSE_MS = 30_000;

/** Yield the parts of a stream; the last one is its end. Throws nothing. */
export async function* follow(
  source: Source,
  decoder: Decoder,
  signal: AbortSignal,
  options: FollowOptions = {},
): AsyncGenerator<Part, void, undefined> {
  const following = new Following(source, decoder, signal, options);
  try {
    yield* following.parts();
  } catch (error) {
    yield signal.aborted ? { type: "cancelled" } : { type: "error", failure: brokenBy(error) };
  }
}

class Following {
  readonly #source: Source;
  readonly #decoder: Decoder;
  readonly #signal: AbortSignal;
  readonly #options: FollowOptions;
  #lastEventId = "";
  #retryMs: number | null = null;
  #texts: string[] = [];
  #hasBrought = false;
  #broken: Failure | null = null;

  constructor(source: Source, decoder: Decoder, signal: AbortSignal, options: FollowOptions) {
    this.#source = source;
    this.#decoder = decoder;
    this.#signal = signal;
    this.#options = options;
  }

  async *parts(): AsyncGenerator<Part, void, undefined> {
    const { reconnects = RECONNECTS } = this.#options;
    for (let attempt = 0; ; attempt += 1) {
      const heard = yield* this.#connection();
      if (heard === "end") return;
      if (heard === "events") attempt = 0;
      // Usage may follow the reason: what closed after that is read on too, where its place is known.
      const end = this.#decoder.closed();
      const canGoOn = this.#lastEventId !== "" || (!this.#hasBrought && end === null);
      if (!this.#source.canReopen() || !canGoOn || attempt >= reconnects) {
        yield end ?? { type: "truncated", failure: this.#broken };
        return;
      }
      const asked = this.#retryMs ?? pauseMs(attempt, Math.random());
      await pause(Math.min(asked, LONGEST_PAUSE_MS), this.#signal);
      this.#retryMs = null;
    }
  }

  /** Yield what one connection brings; return whether that was the end, events or nothing. */
  async *#connection(): AsyncGenerator<Part, "end" | "events" | "nothing", undefined> {
    let response: Response;
    try {
      response = await this.#source.open(this.#lastEventId, this.#signal);
    } catch (error) {
      if (!(error instanceof RequestError) || !this.#source.canReopen()) throw error;
      this.#broken = error.failure;
      return "nothing";
    }
    if (response.status === 204) return yield* this.#settle();
    if (!response.ok) {
      const refused = await readFailure(response);
      if (!this.#source.canReopen()) throw new RequestError(refused);
      this.#broken = refused;
      this.#retryMs = refused.retryAfterMs;
      if (isPassing(response.status)) return "nothing";
      const heard = yield* this.#settle(refused);
      if (heard === "end") return heard;
      throw new RequestError(refused);
    }
    const type = response.headers.get("content-type") ?? "";
    if (response.body === null || !/^text\/event-stream\s*(;|$)/i.test(type)) {
      response.body?.cancel().catch(() => undefined);
      this.#broken = streamFailure(`The answer is not an event stream but ${type || "nothing"}.`);
      if (!this.#source.canReopen()) throw new RequestError(this.#broken);
      return "nothing";
    }
    let count = 0;
    for await (const part of this.#events(response.body)) {
      if (part === null) {
        count += 1;
        continue;
      }
      this.#hasBrought = true;
      if (part.type === "text") this.#texts.push(part.text);
      yield part;
      if (isEnd(part)) return "end";
    }
    // A server that has nothing to say about a stream may have forgotten it.
    if (count === 0 && this.#broken === null) return yield* this.#settle();
    return count > 0 ? "events" : "nothing";
  }

  /** Yield null for each event, and its parts. Does not throw for a broken connection. */
  async *#events(body: ReadableStream<Uint8Array>): AsyncGenerator<Part | null, void, undefined> {
    const reader = new SseReader(this.#options.maxEventLength);
    const { silenceMs = SILENCE_MS } = this.#options;
    const events = readEvents(body, reader, { signal: this.#signal, silenceMs });
    this.#broken = null;
    try {
      for await (const event of events) {
        yield null;
        this.#lastEventId = event.lastEventId || this.#lastEventId;
        yield* this.#decoder.take(event);
      }
    } catch (error) {
      if (this.#signal.aborted || error instanceof EventTooLarge) throw error;
      this.#broken = brokenBy(error);
    }
    this.#retryMs = reader.retryMs;
  }

  /**
   * Yield what is left by the decoder, or by the record. Throws RequestError, `refused` if given, when
   * that is gone too.
   */
  async *#settle(refused?: Failure): AsyncGenerator<Part, "end" | "nothing", undefined> {
    const end = this.#decoder.closed();
    if (end !== null) {
      yield end;
      return "end";
    }
    let rest: readonly Part[] | null | undefined;
    try {
      rest = await this.#source.settle?.(this.#texts.join(""), this.#signal);
    } catch (error) {
      const status = error instanceof RequestError ? error.failure.status : null;
      if (this.#signal.aborted) throw error;
      if (status !== null && !isPassing(status)) throw refused === undefined ? error : new RequestError(refused);
    }
    if (rest === null || rest === undefined) return "nothing";
    yield* rest;
    return "end";
  }
}

/** Make the failure of an event that says so. */
export function streamFailure(message: string, type: string | null = null): Failure {
  return failure(message, { type: type ?? "stream" });
}

function isPassing(status: number): boolean {
  return status >= 500 || status === 429 || status === 408 || status === 425;
}
