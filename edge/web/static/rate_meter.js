// Owns the live tokens-a-second figure: the mean over the last few seconds. Pure; time is an argument.

const WINDOW_MS = 4000;
const SHORTEST_MS = 400;

export class RateMeter {
  #samples = [];
  #total = 0;

  /** Tokens seen so far. */
  get total() {
    return this.#total;
  }

  /** Note tokens that came now. What is replayed after connecting counts for the total only. */
  add(tokens, nowMs, { replayed = false } = {}) {
    this.#total += tokens;
    if (replayed) return;
    this.#samples.push({ tokens, at: nowMs });
    while (this.#samples.length > 2 && this.#samples[0].at < nowMs - WINDOW_MS) this.#samples.shift();
  }

  /** Tokens a second; null until there is enough to tell. */
  rate() {
    const first = this.#samples.at(0);
    const last = this.#samples.at(-1);
    if (first === undefined || last.at - first.at < SHORTEST_MS) return null;
    const later = this.#samples.reduce((sum, sample) => sum + sample.tokens, 0) - first.tokens;
    return (later * 1000) / (last.at - first.at);
  }

  reset() {
    this.#samples = [];
    this.#total = 0;
  }
}
