// Owns streams that are one POST: attached to their caller, or on request resumable.
//
// An attached stream ends when its connection does. A resumable one (`X-Resumable`) goes on without
// us, so it is read on at the answer's `Location`, and cancelled by the id in `x-request-id`.

import { untilAborted } from "./backoff.js";
import { postCancel } from "./cancelling.js";
import type { Endpoint, RequestOptions } from "./endpoint.js";
import { type Decoder, follow, type FollowOptions, type Source } from "./follow.js";
import { Run } from "./run.js";

/** How to stream. */
export interface StreamOptions extends RequestOptions {
  /** Have the generation go on when the connection breaks, and come back to it. */
  readonly resumable?: boolean | undefined;
}

/** Return a run. The request goes out when it is read; that of a resumable one at once. */
export function startStream(
  endpoint: Endpoint,
  path: string,
  body: unknown,
  decoder: Decoder,
  { signal, headers, resumable = false }: StreamOptions,
  options: FollowOptions,
): Run {
  const url = endpoint.url(path);
  const ask = { Accept: "text/event-stream", ...headers };
  if (!resumable) {
    const open = (_: string, reading: AbortSignal): Promise<Response> =>
      endpoint.send(url, { method: "POST", body, headers: ask, signal: reading });
    const source: Source = { open, canReopen: () => false };
    return new Run({ parts: (reading) => follow(source, decoder, reading, options) }, signal);
  }
  const source = new ResumableSource(endpoint, url, body, ask);
  return new Run(
    { parts: (reading) => follow(source, decoder, reading, options), cancel: () => source.cancel() },
    signal,
  );
}

class ResumableSource implements Source {
  readonly #endpoint: Endpoint;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #answered: Promise<Response>;
  readonly #url: string;
  #isFirst = true;
  #location: string | null = null;

  constructor(endpoint: Endpoint, url: string, body: unknown, headers: Readonly<Record<string, string>>) {
    this.#endpoint = endpoint;
    this.#headers = headers;
    this.#url = url;
    // Without a signal: only the answer says what to cancel.
    const resumable = { ...headers, "X-Resumable": "true" };
    this.#answered = endpoint.send(url, { method: "POST", body, headers: resumable });
    this.#answered.catch(() => undefined);
  }

  async open(lastEventId: string, signal: AbortSignal): Promise<Response> {
    if (!this.#isFirst) {
      const resume = lastEventId === "" ? {} : { "Last-Event-ID": lastEventId };
      const headers = { ...this.#headers, ...resume };
      return this.#endpoint.send(this.#location ?? this.#url, { method: "GET", headers, signal });
    }
    try {
      const response = await untilAborted(this.#answered, signal);
      this.#isFirst = false;
      const location = response.headers.get("location");
      if (response.ok && location !== null) this.#location = new URL(location, response.url || this.#url).href;
      return response;
    } catch (error) {
      if (signal.aborted) this.#answered.then(leave, () => undefined);
      throw error;
    }
  }

  canReopen(): boolean {
    return this.#location !== null;
  }

  async cancel(): Promise<void> {
    const response = await this.#answered.catch(() => null);
    const id = response?.ok === true ? response.headers.get("x-request-id") : null;
    if (id === null) return;
    await postCancel(this.#endpoint, this.#endpoint.url(`predictions/${encodeURIComponent(id)}/cancel`));
  }
}

function leave(response: Response): void {
  response.body?.cancel().catch(() => undefined);
}
