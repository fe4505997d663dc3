// Owns the list of a prediction's events. While it runs they come from the stream that the page reads
// anyway; of one that has ended they are replayed when the list is opened for the first time.

import { byId, element, setText, show } from "./dom.js";
import { isTerminal, shorten } from "./format.js";
import { PredictionStream } from "./stream.js";

const MOST_ROWS = 500;
const TEXTS = new Set(["output", "logs"]);

export class EventTable {
  #api;
  #rows = byId("events-rows");
  #count = 0;
  #prediction = null;
  #wasFollowed = false;
  #replay = null;

  constructor(api) {
    this.#api = api;
    byId("events").addEventListener("toggle", () => this.#toggled());
  }

  /** Note the prediction whose events these are. */
  describe(prediction) {
    this.#prediction = prediction;
  }

  /** Show one more event. */
  add({ type, id, data }) {
    this.#wasFollowed = true;
    this.#count += 1;
    setText(byId("events-count"), String(this.#count));
    if (this.#count > MOST_ROWS) {
      this.#hint(`The first ${MOST_ROWS} are listed.`);
      return;
    }
    this.#rows.append(
      element(
        "tr",
        "",
        element("td", "mono", id),
        element("td", "mono", type),
        element("td", "mono", shorten(TEXTS.has(type) ? JSON.stringify(data) : data, 120)),
      ),
    );
  }

  #toggled() {
    const prediction = this.#prediction;
    if (!byId("events").open || this.#wasFollowed || this.#replay !== null || prediction === null) return;
    if (prediction.data_removed) {
      this.#hint("Removed after their retention.");
      return;
    }
    if (!isTerminal(prediction.status)) return;
    this.#replay = new PredictionStream(
      this.#api.streamUrl(prediction),
      { event: (event) => this.add(event) },
      () => Promise.resolve(true),
    );
    this.#replay.open();
  }

  #hint(text) {
    setText(byId("events-hint"), text);
    show(byId("events-hint"), true);
  }
}
