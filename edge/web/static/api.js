// Owns calls of the API from a page: same origin, JSON, and the API token if the server asks for one.

const TOKEN_KEY = "tailrace.token";
const OWN_PATH = /\/v1\/(predictions\/[^/]+\/cancel|streams\/[^/]+)$/;

/** An answer that is not a success: what RFC 9457 says of it. */
export class ApiError extends Error {
  constructor(status, problem = {}) {
    super(problem.detail || problem.title || `The server answered ${status}.`);
    this.status = status;
    this.title = problem.title ?? "";
    this.fields = Array.isArray(problem.invalid_fields) ? problem.invalid_fields : [];
  }
}

/** There was no answer at all. */
export class Unreachable extends Error {
  constructor() {
    super("The server cannot be reached.");
  }
}

export class Api {
  #prefix;
  #askForToken;
  #fetch;
  #storage;
  #token;
  #clockOffsetMs = 0;

  /** `askForToken(wasRefused)` returns a promise of a token; it is called when one is needed. */
  constructor(prefix, askForToken, world = {}) {
    this.#prefix = prefix;
    this.#askForToken = askForToken;
    this.#fetch = world.fetch ?? globalThis.fetch.bind(globalThis);
    this.#storage = world.storage ?? globalThis.sessionStorage;
    this.#token = this.#storage?.getItem(TOKEN_KEY) ?? "";
  }

  /** Whether the server has asked for a token. */
  get hasToken() {
    return this.#token !== "";
  }

  /** The server's time in milliseconds, to a second or so. */
  now() {
    return Date.now() + this.#clockOffsetMs;
  }

  getPrediction(id) {
    return this.#call("GET", `/v1/predictions/${encodeURIComponent(id)}`);
  }

  createPrediction(model, input) {
    const [owner, name] = model.split("/").map(encodeURIComponent);
    return this.#call("POST", `/v1/models/${owner}/${name}/predictions`, { input });
  }

  cancelPrediction(prediction) {
    return this.#call("POST", this.#path(prediction.urls.cancel));
  }

  listModels() {
    return this.#call("GET", "/playground/models.json").then((answer) => answer.models);
  }

  /** Calls of a prediction's webhook; an empty list where the server keeps none. */
  async listWebhookDeliveries(id) {
    try {
      const answer = await this.#call("GET", `/v1/predictions/${encodeURIComponent(id)}/webhook-deliveries`);
      return answer.deliveries ?? answer.results ?? [];
    } catch (error) {
      if (error instanceof ApiError && [404, 405, 501].includes(error.status)) return [];
      throw error;
    }
  }

  /** A prediction's stream at the origin this page came from, whatever public base its URLs name. */
  streamUrl(prediction) {
    return new URL(this.#prefix + this.#path(prediction.urls.stream), globalThis.location.href).href;
  }

  /** The path of one of the API's absolute URLs, without the prefix that the server is under. */
  #path(url) {
    return OWN_PATH.exec(new URL(url).pathname)[0];
  }

  async #call(method, path, body) {
    let wasRefused = false;
    for (;;) {
      const answer = await this.#send(method, path, body);
      if (answer.status !== 401) return this.#read(answer);
      this.#keep(await this.#askForToken(wasRefused || this.hasToken));
      wasRefused = true;
    }
  }

  async #send(method, path, body) {
    const headers = { accept: "application/json" };
    if (this.#token) headers.authorization = `Bearer ${this.#token}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    const text = body === undefined ? undefined : JSON.stringify(body);
    try {
      return await this.#fetch(this.#prefix + path, { method, headers, body: text, cache: "no-store" });
    } catch {
      throw new Unreachable();
    }
  }

  async #read(answer) {
    const date = Date.parse(answer.headers.get("date") ?? "");
    if (Number.isFinite(date)) this.#clockOffsetMs = clockOffset(date, Date.now());
    let value = null;
    try {
      value = await answer.json();
    } catch {
      value = {}; // a proxy's own page, or a connection that broke
    }
    if (!answer.ok) throw new ApiError(answer.status, value);
    return value;
  }

  #keep(token) {
    this.#token = token.trim();
    this.#storage?.setItem(TOKEN_KEY, this.#token);
  }
}

/** What to add to our clock to have the server's; small differences are the header's coarseness. */
export function clockOffset(serverMs, ourMs) {
  const offset = serverMs + 500 - ourMs;
  return Math.abs(offset) < 2000 ? 0 : offset;
}
