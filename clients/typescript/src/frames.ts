// Owns when text is shown: all that came since the last frame at once, a frame at a time.
//
// A hidden page has no frames, and a page may become hidden while it waits for one, so a timer runs
// beside: whichever comes first.

const LATEST_MS = 100;

/** Calls back once for any number of requests in between. */
export class FrameBatch {
  readonly #flush: () => void;
  #frame: number | null = null;
  #timer: ReturnType<typeof setTimeout> | null = null;

  constructor(flush: () => void) {
    this.#flush = flush;
  }

  /** Ask for a call. */
  request(): void {
    if (this.#timer !== null) return;
    const isHidden = typeof document !== "undefined" && document.visibilityState === "hidden";
    this.#timer = setTimeout(this.#run, isHidden ? 0 : LATEST_MS);
    if (!isHidden && typeof requestAnimationFrame === "function") {
      this.#frame = requestAnimationFrame(this.#run);
    }
  }

  /** Forget what was asked for. */
  clear(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    if (this.#frame !== null) cancelAnimationFrame(this.#frame);
    this.#timer = this.#frame = null;
  }

  readonly #run = (): void => {
    this.clear();
    this.#flush();
  };
}
