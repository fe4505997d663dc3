// Owns the reader of server-sent events: bytes in, events out, however the network cuts them.
//
// Specification: WHATWG HTML, server-sent events ("Parsing an event stream", "Interpreting an event
// stream"). Deliberate differences: one event has an upper size, since a server that never ends one
// would fill the memory, and a reconnection time is at most a day.

/** Longest event, in UTF-16 units, its field names included. */
export const MAX_EVENT_LENGTH = 8 * 1024 * 1024;

const LONGEST_RETRY_MS = 86_400_000;
const BOM = "\ufeff";
const CARRIAGE_RETURN = 13;
const LINE_END = /[\r\n]/g;

/** One event. */
export interface SseEvent {
  /** Its name; `message` where it has none. */
  readonly event: string;
  readonly data: string;
  /** The last id of the stream so far, this event's own included. */
  readonly lastEventId: string;
}

/** An event was longer than the reader takes. */
export class EventTooLarge extends Error {
  constructor(limit: number) {
    super(`The stream has an event of more than ${limit} characters.`);
    this.name = "EventTooLarge";
  }
}

/** Reads one stream. Bytes of an event that has not ended when the stream does are dropped. */
export class SseReader {
  readonly #limit: number;
  // A byte order mark is taken off here: it may be cut over chunks, and only the first one is none.
  readonly #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  #isStarted = false;
  #isAfterReturn = false;
  #line: string[] = [];
  #data: string[] = [];
  #name = "";
  #id = "";
  #length = 0;
  #lastEventId = "";
  #retryMs: number | null = null;

  constructor(limit: number = MAX_EVENT_LENGTH) {
    this.#limit = limit;
  }

  /** The id to resume after; of whole events only. */
  get lastEventId(): string {
    return this.#lastEventId;
  }

  /** The reconnection time that the server asked for. */
  get retryMs(): number | null {
    return this.#retryMs;
  }

  /** Take the next bytes and return the events that they end. Throws EventTooLarge. */
  feed(chunk: Uint8Array): SseEvent[] {
    let text = this.#decoder.decode(chunk, { stream: true });
    if (text === "") return [];
    if (!this.#isStarted) {
      this.#isStarted = true;
      if (text.startsWith(BOM)) text = text.slice(1);
    }
    const events: SseEvent[] = [];
    let start = 0;
    if (this.#isAfterReturn && text !== "") {
      this.#isAfterReturn = false;
      if (text.startsWith("\n")) start = 1;
    }
    LINE_END.lastIndex = start;
    for (let match = LINE_END.exec(text); match !== null; match = LINE_END.exec(text)) {
      const end = match.index;
      this.#grow(end - start);
      this.#line.push(text.slice(start, end));
      const line = this.#line.length === 1 ? (this.#line[0] ?? "") : this.#line.join("");
      this.#line = [];
      this.#take(line, events);
      start = end + 1;
      if (text.charCodeAt(end) === CARRIAGE_RETURN) {
        if (start === text.length) this.#isAfterReturn = true;
        else if (text.startsWith("\n", start)) start += 1;
      }
      LINE_END.lastIndex = start;
    }
    if (start < text.length) {
      this.#grow(text.length - start);
      this.#line.push(text.slice(start));
    }
    return events;
  }

  #grow(length: number): void {
    this.#length += length;
    if (this.#length > this.#limit) throw new EventTooLarge(this.#limit);
  }

  #take(line: string, events: SseEvent[]): void {
    if (line === "") {
      this.#dispatch(events);
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) {
      this.#length -= line.length; // a comment: keep-alives are no part of an event
      return;
    }
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    switch (field) {
      case "data":
        this.#data.push(value);
        break;
      case "event":
        this.#name = value;
        break;
      case "id":
        if (!value.includes("\0")) this.#id = value;
        break;
      case "retry":
        if (/^[0-9]+$/.test(value)) this.#retryMs = Math.min(Number(value), LONGEST_RETRY_MS);
        break;
    }
  }

  #dispatch(events: SseEvent[]): void {
    this.#lastEventId = this.#id;
    if (this.#data.length > 0) {
      events.push({
        event: this.#name || "message",
        data: this.#data.join("\n"),
        lastEventId: this.#lastEventId,
      });
    }
    this.#data = [];
    this.#name = "";
    this.#length = 0;
  }
}

/** The connection brought nothing, not even a keep-alive, for too long. */
export class StreamSilent extends Error {
  constructor(limitMs: number) {
    super(`The stream was silent for ${limitMs} ms.`);
    this.name = "StreamSilent";
  }
}

/** How to read a body. */
export interface ReadOptions {
  /** Ends the reading with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
  /** Longest silence; 0 for none. The default is 0. */
  readonly silenceMs?: number | undefined;
}

/**
 * Yield a body's events. The body is cancelled when the caller leaves early.
 *
 * Throws what the body throws, EventTooLarge, StreamSilent and the signal's reason.
 */
export async function* readEvents(
  body: ReadableStream<Uint8Array>,
  reader: SseReader = new SseReader(),
  options: ReadOptions = {},
): AsyncGenerator<SseEvent, void, undefined> {
  const bytes = body.getReader();
  try {
    for (;;) {
      const { done, value } = await readChunk(bytes, options);
      if (done) return;
      yield* reader.feed(value);
    }
  } finally {
    // Not waited for: a connection that hangs would hold up the caller.
    bytes.cancel().catch(() => undefined);
  }
}

function readChunk(
  bytes: ReadableStreamDefaultReader<Uint8Array>,
  { signal, silenceMs = 0 }: ReadOptions,
): Promise<ReadableStreamReadResult<Uint8Array>> {
  return new Promise((resolve, reject) => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const abort = (): void => settle(() => reject(signal?.reason));
    const settle = (then: () => void): void => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
      then();
    };
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    signal?.addEventListener("abort", abort);
    if (silenceMs > 0) {
      timer = setTimeout(() => settle(() => reject(new StreamSilent(silenceMs))), silenceMs);
    }
    bytes.read().then(
      (result) => settle(() => resolve(result)),
      (error: unknown) => settle(() => reject(error)),
    );
  });
}
