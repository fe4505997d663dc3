// Owns pauses between tries: how long, and waiting for one without missing an abort.

const FIRST_MS = 250;
const LONGEST_MS = 10_000;

/** Return the pause before try `attempt` (from 0): doubling, spread by `random` in 0 … 1. */
export function pauseMs(attempt: number, random: number): number {
  return Math.min(LONGEST_MS, FIRST_MS * 2 ** attempt) * (0.5 + random / 2);
}

/** Wait. Rejects with the signal's reason. */
export async function pause(durationMs: number, signal?: AbortSignal): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const over = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, durationMs);
  });
  try {
    await untilAborted(over, signal);
  } finally {
    clearTimeout(timer);
  }
}

/** Return what `work` does, or reject with the signal's reason if that comes first; `work` goes on. */
export function untilAborted<T>(work: Promise<T>, signal?: AbortSignal): Promise<T> {
  if (signal === undefined) return work;
  return new Promise((resolve, reject) => {
    const abort = (): void => reject(signal.reason);
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}
