// Owns how a server is reached: the base of its URLs, the token, and one request.

import { brokenBy, failure, parseJson, readFailure, RequestError } from "./failure.js";

/** How to reach the server. */
export interface EndpointOptions {
  /** What stands before `/v1`, a sub-path included; a `/v1` or slash at its end makes no difference. */
  readonly baseUrl: string;
  /** Sent as `Authorization: Bearer`. */
  readonly token?: string | undefined;
  /** Sent with every request to the API. */
  readonly headers?: Readonly<Record<string, string>> | undefined;
  readonly fetch?: typeof fetch | undefined;
}

/** What one request may have. */
export interface RequestOptions {
  readonly signal?: AbortSignal | undefined;
  readonly headers?: Readonly<Record<string, string>> | undefined;
}

interface Sending extends RequestOptions {
  readonly method: "GET" | "POST";
  readonly body?: unknown;
  /** Whether the request survives the page that sends it. */
  readonly keepalive?: boolean;
}

/** One server. */
export class Endpoint {
  readonly #base: string;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #fetch: typeof fetch;

  constructor(options: EndpointOptions) {
    this.#base = options.baseUrl.replace(/\/+$/, "").replace(/\/v1$/, "");
    this.#headers = {
      ...(options.token === undefined ? {} : { Authorization: `Bearer ${options.token}` }),
      ...options.headers,
    };
    this.#fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
  }

  /** Return the URL of a path below `/v1`. */
  url(path: string): string {
    return `${this.#base}/v1/${path}`;
  }

  /**
   * Send a request with the token and return the answer, whatever its status.
   *
   * A full URL is one that the server gave out itself. Throws RequestError where no answer came, and
   * the signal's reason.
   */
  async send(url: string, sending: Sending): Promise<Response> {
    return this.#send(url, { ...sending, headers: { ...this.#headers, ...sending.headers } });
  }

  /** Send a GET to a URL that is its own credential: without the token. */
  async sendBare(url: string, options: RequestOptions): Promise<Response> {
    return this.#send(url, { method: "GET", ...options });
  }

  /** Send a request and return its JSON. Throws RequestError. */
  async sendJson(url: string, sending: Sending): Promise<unknown> {
    const response = await this.send(url, sending);
    if (!response.ok) throw new RequestError(await readFailure(response));
    let json: unknown;
    try {
      json = parseJson(await response.text());
    } catch (error) {
      if (sending.signal?.aborted) throw error;
      throw new RequestError(brokenBy(error), error);
    }
    if (json === undefined) throw new RequestError(failure("The answer is not JSON.", { type: "stream" }));
    return json;
  }

  async #send(url: string, { method, body, signal, headers, keepalive }: Sending): Promise<Response> {
    const init: RequestInit = {
      method,
      cache: "no-store",
      headers: { ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      ...(signal === undefined ? {} : { signal }),
      ...(keepalive === true ? { keepalive } : {}),
    };
    try {
      return await this.#fetch(url, init);
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new RequestError(brokenBy(error), error);
    }
  }
}
