// Owns OpenAI's chat completions: whole answers, and what the chunks of a stream mean.
//
// The first choice is read. Chunks that say nothing (`{}`, no choices, usage alone) say nothing.

import { type StreamOptions, startStream } from "./attached.js";
import { Endpoint, type EndpointOptions, type RequestOptions } from "./endpoint.js";
import { failure, type Failure, membersOf, parseJson, readError, textOf } from "./failure.js";
import type { Decoder, FollowOptions } from "./follow.js";
import type { End, Part, Usage } from "./parts.js";
import type { Run } from "./run.js";
import type { SseEvent } from "./sse.js";
import { ToolCalls } from "./tool_calls.js";

/** A request; any other field of OpenAI's may be there. */
export interface ChatRequest {
  readonly model: string;
  readonly messages: readonly Readonly<Record<string, unknown>>[];
  readonly [member: string]: unknown;
}

/** A client of OpenAI's API. */
export class OpenAI {
  readonly #endpoint: Endpoint;
  readonly #follow: FollowOptions;

  constructor(options: EndpointOptions & FollowOptions) {
    this.#endpoint = new Endpoint(options);
    this.#follow = options;
  }

  /** Return the whole answer as it comes. Aborting cancels it. Throws RequestError and the signal's reason. */
  async create(request: ChatRequest, options: RequestOptions = {}): Promise<unknown> {
    const url = this.#endpoint.url("chat/completions");
    return this.#endpoint.sendJson(url, { method: "POST", body: { ...request, stream: false }, ...options });
  }

  /** Stream an answer. Leaving cancels it, unless it is resumable. */
  stream(request: ChatRequest, options: StreamOptions = {}): Run {
    const body = { stream_options: { include_usage: true }, ...request, stream: true };
    return startStream(this.#endpoint, "chat/completions", body, new ChunkDecoder(), options, this.#follow);
  }
}

/** What the chunks of a stream mean. */
export class ChunkDecoder implements Decoder {
  readonly #tools = new ToolCalls();
  #reason: string | null = null;
  #usage: Usage | null = null;

  take(event: SseEvent): readonly Part[] {
    if (event.data === "[DONE]") return [this.#finished()];
    if (event.data.trim() === "") return [];
    const json = parseJson(event.data);
    if (json === undefined) {
      const broken = event.event === "error" ? failure(event.data) : malformed();
      return [{ type: "error", failure: broken }];
    }
    const chunk = membersOf(json);
    if (isGiven(chunk["error"]) || event.event === "error") {
      return [{ type: "error", failure: readError(chunk["error"] ?? json) }];
    }
    this.#usage = readUsage(chunk["usage"]) ?? this.#usage;
    const choices: readonly unknown[] = Array.isArray(chunk["choices"]) ? chunk["choices"] : [];
    return choices.map(membersOf).filter(isFirst).flatMap((choice) => this.#choice(choice));
  }

  /** Some servers close without `[DONE]`. */
  closed(): End | null {
    return this.#reason === null ? null : this.#finished();
  }

  #choice(choice: Readonly<Record<string, unknown>>): Part[] {
    const delta = membersOf(choice["delta"]);
    const parts: Part[] = [];
    const text = textOf(delta["content"]);
    if (text !== null) parts.push({ type: "text", text });
    const calls: readonly unknown[] = Array.isArray(delta["tool_calls"]) ? delta["tool_calls"] : [];
    calls.map(membersOf).forEach((call, place) => this.#call(call, place));
    if (calls.length > 0) parts.push({ type: "tool_calls", calls: this.#tools.calls });
    this.#reason = textOf(choice["finish_reason"]) ?? this.#reason;
    return parts;
  }

  #call(call: Readonly<Record<string, unknown>>, place: number): void {
    const called = membersOf(call["function"]);
    this.#tools.add({
      index: typeof call["index"] === "number" ? call["index"] : place,
      id: textOf(call["id"]),
      name: textOf(called["name"]),
      arguments: textOf(called["arguments"]),
    });
  }

  #finished(): End {
    return { type: "finished", reason: this.#reason, usage: this.#usage, calls: this.#tools.calls };
  }
}

function isFirst(choice: Readonly<Record<string, unknown>>): boolean {
  return (choice["index"] ?? 0) === 0;
}

function isGiven(value: unknown): boolean {
  return value !== undefined && value !== null;
}

function malformed(): Failure {
  return failure("The stream has an event that is not JSON.", { type: "stream" });
}

function readUsage(given: unknown): Usage | null {
  const usage = membersOf(given);
  const [input, output] = [usage["prompt_tokens"], usage["completion_tokens"]];
  if (typeof input !== "number" && typeof output !== "number") return null;
  return {
    inputTokens: typeof input === "number" ? input : null,
    outputTokens: typeof output === "number" ? output : null,
  };
}
