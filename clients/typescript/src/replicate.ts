// Owns Replicate's API: a prediction is created once, and then read as often as it takes.
//
// A create is never repeated. The stream is a GET on a URL that is its own credential, so the token
// is not sent there.

import { untilAborted } from "./backoff.js";
import { postCancel } from "./cancelling.js";
import { Endpoint, type EndpointOptions, type RequestOptions } from "./endpoint.js";
import { failure, type Failure, membersOf, parseJson, RequestError, textOf } from "./failure.js";
import { type Decoder, follow, type FollowOptions, type Source, streamFailure } from "./follow.js";
import type { End, Part } from "./parts.js";
import { Run } from "./run.js";
import type { SseEvent } from "./sse.js";

/** What to create. */
export interface PredictionRequest {
  /** `owner/name`. */
  readonly model: string;
  readonly input: Readonly<Record<string, unknown>>;
  readonly [member: string]: unknown;
}

/** A prediction as the server tells it; more members than these are there. */
export interface Prediction {
  readonly id: string;
  readonly status: "starting" | "processing" | "succeeded" | "failed" | "canceled";
  readonly output: unknown;
  readonly error: unknown;
  readonly urls: Readonly<{ get: string; cancel: string; stream?: string }>;
  readonly [member: string]: unknown;
}

/** A client of Replicate's API. */
export class Replicate {
  readonly #endpoint: Endpoint;
  readonly #follow: FollowOptions;

  constructor(options: EndpointOptions & FollowOptions) {
    this.#endpoint = new Endpoint(options);
    this.#follow = options;
  }

  /** Create a prediction, by one POST. Throws RequestError and the signal's reason. */
  async create(request: PredictionRequest, options: RequestOptions = {}): Promise<Prediction> {
    const { model, ...body } = request;
    const path = `models/${model.split("/").map(encodeURIComponent).join("/")}/predictions`;
    return (await this.#endpoint.sendJson(this.#endpoint.url(path), {
      method: "POST",
      body,
      ...options,
    })) as Prediction;
  }

  /** Return a prediction as it stands. Throws RequestError and the signal's reason. */
  async get(prediction: Pick<Prediction, "urls">, options: RequestOptions = {}): Promise<Prediction> {
    return (await this.#endpoint.sendJson(prediction.urls.get, { method: "GET", ...options })) as Prediction;
  }

  /** Cancel a prediction; one that has ended stays as it is. Throws RequestError. */
  async cancel(prediction: Pick<Prediction, "urls">): Promise<Prediction> {
    return (await (await postCancel(this.#endpoint, prediction.urls.cancel)).json()) as Prediction;
  }

  /**
   * Create a prediction and read it. Leaving does not cancel it.
   *
   * The create goes out at once and to its end, whatever happens to the run: a prediction whose id is
   * not known cannot be cancelled.
   */
  stream(request: PredictionRequest, { signal, headers }: RequestOptions = {}): Run {
    const created = this.create(request, { headers });
    created.catch(() => undefined);
    return this.#run(created, signal);
  }

  /** Read a prediction that is there, from its start. Leaving does not cancel it. */
  follow(prediction: Prediction, { signal }: Pick<RequestOptions, "signal"> = {}): Run {
    return this.#run(Promise.resolve(prediction), signal);
  }

  #run(created: Promise<Prediction>, signal: AbortSignal | undefined): Run {
    const cancel = async (): Promise<void> => {
      const prediction = await created.catch(() => null);
      if (prediction !== null) await this.cancel(prediction);
    };
    return new Run({ parts: (reading) => this.#parts(created, reading), cancel }, signal);
  }

  async *#parts(created: Promise<Prediction>, signal: AbortSignal): AsyncGenerator<Part, void, undefined> {
    let prediction: Prediction;
    try {
      prediction = await untilAborted(created, signal);
    } catch (error) {
      if (signal.aborted) yield { type: "cancelled" };
      else yield { type: "error", failure: error instanceof RequestError ? error.failure : failure(String(error)) };
      return;
    }
    yield* follow(new PredictionSource(this, this.#endpoint, prediction), new OutputDecoder(), signal, this.#follow);
  }
}

class PredictionSource implements Source {
  readonly #client: Replicate;
  readonly #endpoint: Endpoint;
  readonly #prediction: Prediction;

  constructor(client: Replicate, endpoint: Endpoint, prediction: Prediction) {
    this.#client = client;
    this.#endpoint = endpoint;
    this.#prediction = prediction;
  }

  async open(lastEventId: string, signal: AbortSignal): Promise<Response> {
    const url = this.#prediction.urls.stream;
    if (url === undefined) throw new Error("The prediction has no stream.");
    const resume = lastEventId === "" ? {} : { "Last-Event-ID": lastEventId };
    return this.#endpoint.sendBare(url, { signal, headers: { Accept: "text/event-stream", ...resume } });
  }

  canReopen(): boolean {
    return true;
  }

  async settle(text: string, signal: AbortSignal): Promise<readonly Part[] | null> {
    return restOf(await this.#client.get(this.#prediction, { signal }), text);
  }
}

/** Return what is left of a prediction for a reader who has `text`; null while it runs. Pure. */
export function restOf(prediction: Prediction, text: string): readonly Part[] | null {
  const end = endOf(prediction);
  if (end === null) return null;
  const { output } = prediction;
  const whole = Array.isArray(output) ? output.join("") : (textOf(output) ?? "");
  // Removed data is no text; what a reader has then stays.
  const rest = whole.startsWith(text) ? whole.slice(text.length) : "";
  return rest === "" ? [end] : [{ type: "text", text: rest }, end];
}

function endOf(prediction: Prediction): End | null {
  switch (prediction.status) {
    case "succeeded":
      return finished("succeeded");
    case "failed":
      return { type: "error", failure: failure(textOf(prediction.error) ?? "The prediction failed.") };
    case "canceled":
      return { type: "cancelled" };
    default:
      return null;
  }
}

function finished(reason: string): End {
  return { type: "finished", reason, usage: null, calls: [] };
}

/** What the events of a prediction's stream mean. */
export class OutputDecoder implements Decoder {
  #error: Failure | null = null;

  take(event: SseEvent): readonly Part[] {
    switch (event.event) {
      case "output":
        this.#error = null;
        return event.data === "" ? [] : [{ type: "text", text: event.data }];
      case "error": {
        // An error without `done` after it broke the stream, not the prediction.
        const detail = textOf(membersOf(parseJson(event.data))["detail"]);
        this.#error = streamFailure(detail ?? (event.data || "The prediction failed."), "prediction");
        return [];
      }
      case "done":
        return [this.#end(textOf(membersOf(parseJson(event.data))["reason"]))];
      default:
        return [];
    }
  }

  closed(): null {
    this.#error = null;
    return null;
  }

  #end(reason: string | null): End {
    if (reason === "canceled") return { type: "cancelled" };
    if (reason === "error" || this.#error !== null) {
      return { type: "error", failure: this.#error ?? streamFailure("The prediction failed.", "prediction") };
    }
    return finished(reason ?? "succeeded");
  }
}
