// Owns telling a server to cancel: one POST, repeated only where no answer came or a passing error did.

import { pause, pauseMs } from "./backoff.js";
import type { Endpoint } from "./endpoint.js";
import { failure, readFailure, RequestError } from "./failure.js";

const TRIES = 6;

/** Cancel, and return the answer. Throws RequestError. */
export async function postCancel(endpoint: Endpoint, url: string): Promise<Response> {
  let last = new RequestError(failure("The cancel was not sent."));
  for (let attempt = 0; attempt < TRIES; attempt += 1) {
    if (attempt > 0) await pause(pauseMs(attempt, Math.random()));
    try {
      // The page may be about to go.
      const response = await endpoint.send(url, { method: "POST", keepalive: true });
      if (response.ok) return response;
      last = new RequestError(await readFailure(response));
      if (response.status < 500 && response.status !== 429) break;
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      last = error;
    }
  }
  throw last;
}
