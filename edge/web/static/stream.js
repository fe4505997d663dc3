// Owns one prediction's live events: an EventSource that goes on by itself wherever it was cut.
//
// The browser reconnects with Last-Event-ID when a connection breaks. It gives up for good on an HTTP
// error or an empty answer; then the prediction is asked whether it has ended, and if not, a new
// EventSource is opened after a pause, from the last event on. Nothing is ever shown twice.

import { isNewer } from "./positions.js";

const CLOSED = 2;
const LONGEST_PAUSE_MS = 10_000;

/** How long to wait before try `attempt` (from 0): doubling, spread by `random` in 0 … 1. */
export function pauseMs(attempt, random) {
  return Math.min(LONGEST_PAUSE_MS, 500 * 2 ** attempt) * (0.5 + random / 2);
}

/** `url` asking for every kind of event, from after `lastId` on. */
export function streamUrl(url, lastId) {
  const asked = new URL(url);
  asked.searchParams.set("events", "all");
  if (lastId) asked.searchParams.set("last_event_id", lastId);
  return asked.href;
}

/**
 * Handlers, all optional: `start(facts)`, `output(text)`, `tokens(count)`, `logs(text)`,
 * `error(detail)`, `done(reason)`, `connected()`, `interrupted()`, `event({type, id, data})`.
 * `hasEnded` is asked when the browser has given up; it returns a promise of a boolean.
 */
export class PredictionStream {
  #url;
  #handlers;
  #hasEnded;
  #world;
  #source = null;
  #timer = null;
  #lastId = "";
  #lastTokensId = "";
  #attempt = 0;
  #isOver = false;

  constructor(url, handlers, hasEnded, world = {}) {
    this.#url = url;
    this.#handlers = handlers;
    this.#hasEnded = hasEnded;
    this.#world = {
      EventSource: world.EventSource ?? globalThis.EventSource,
      setTimeout: world.setTimeout ?? globalThis.setTimeout.bind(globalThis),
      clearTimeout: world.clearTimeout ?? globalThis.clearTimeout.bind(globalThis),
      random: world.random ?? Math.random,
    };
  }

  /** Whether nothing more will come. */
  get isOver() {
    return this.#isOver;
  }

  open() {
    const source = new this.#world.EventSource(streamUrl(this.#url, this.#lastId));
    this.#source = source;
    source.addEventListener("open", () => this.#tell("connected"));
    for (const type of ["start", "output", "tokens", "logs", "done"]) {
      source.addEventListener(type, (event) => this.#take(type, event));
    }
    source.addEventListener("error", (event) => {
      if (source !== this.#source) return;
      if (typeof event.data === "string") this.#take("error", event);
      else this.#broken(source);
    });
  }

  /** End without a word. */
  close() {
    this.#isOver = true;
    this.#source?.close();
    this.#source = null;
    this.#world.clearTimeout(this.#timer);
  }

  /** Try again now, if it is waiting to. */
  hurry() {
    if (this.#isOver || this.#timer === null) return;
    this.#world.clearTimeout(this.#timer);
    this.#timer = null;
    this.open();
  }

  #take(type, event) {
    if (this.#isOver) return;
    // A `tokens` event stands at the position of the output that it belongs to.
    const last = type === "tokens" ? this.#lastTokensId : this.#lastId;
    if (event.lastEventId && !isNewer(event.lastEventId, last)) return;
    if (type === "tokens") this.#lastTokensId = event.lastEventId;
    else this.#lastId = event.lastEventId || this.#lastId;
    this.#attempt = 0;
    this.#tell("event", { type, id: event.lastEventId, data: event.data });
    switch (type) {
      case "start":
        return this.#tell("start", readJson(event.data));
      case "tokens":
        return this.#tell("tokens", Number(event.data) || 0);
      case "error":
        return this.#tell("error", readJson(event.data).detail ?? event.data);
      case "done":
        this.close();
        return this.#tell("done", readJson(event.data).reason ?? null);
      default:
        return this.#tell(type, event.data);
    }
  }

  async #broken(source) {
    if (this.#isOver) return;
    this.#tell("interrupted");
    if (source.readyState !== CLOSED) return; // the browser comes back by itself
    this.#source = null;
    let ended = false;
    try {
      ended = await this.#hasEnded();
    } catch {
      // Out of reach: go on trying.
    }
    if (this.#isOver) return;
    if (ended) {
      this.close();
      this.#tell("done", null);
      return;
    }
    const pause = pauseMs(this.#attempt, this.#world.random());
    this.#attempt += 1;
    this.#timer = this.#world.setTimeout(() => {
      this.#timer = null;
      this.open();
    }, pause);
  }

  #tell(name, value) {
    this.#handlers[name]?.(value);
  }
}

function readJson(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}
