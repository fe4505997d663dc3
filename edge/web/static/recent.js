// Owns the list of this tab's predictions, kept in the session storage of the tab. Pure but for that.

const KEY = "tailrace.recent";
const MOST = 20;

export class RecentPredictions {
  #storage;

  constructor(storage = globalThis.sessionStorage) {
    this.#storage = storage;
  }

  /** The newest first: `{id, model, prompt, status, created_at}`. */
  list() {
    try {
      const kept = JSON.parse(this.#storage.getItem(KEY) ?? "[]");
      return Array.isArray(kept) ? kept : [];
    } catch {
      return [];
    }
  }

  /** Put one in, or bring it up to date where it stands. */
  put(entry) {
    const kept = this.list();
    const at = kept.findIndex((other) => other.id === entry.id);
    if (at < 0) kept.unshift(entry);
    else kept[at] = { ...kept[at], ...entry };
    try {
      this.#storage.setItem(KEY, JSON.stringify(kept.slice(0, MOST)));
    } catch {
      // The storage is full or forbidden: the list is a convenience.
    }
  }
}
