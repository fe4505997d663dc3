// Owns which events of a resumable stream are certain. Pure.
//
// A server may write several frames for one event of its own and put the id on the last one: cut in
// between, the first frames come again. So what comes without a new id waits for the next id, which
// is in the same packet as a rule. An error needs none: it is the last word.

import type { SseEvent } from "./sse.js";

/** Groups the events of one connection. */
export class IdGroups {
  #lastEventId = "";
  #held: SseEvent[] = [];

  /** Return the events that are certain with this one. */
  take(event: SseEvent): readonly SseEvent[] {
    this.#held.push(event);
    const isNew = event.lastEventId !== "" && event.lastEventId !== this.#lastEventId;
    if (!isNew && event.event !== "error") return [];
    this.#lastEventId = event.lastEventId;
    return this.#held.splice(0);
  }
}
