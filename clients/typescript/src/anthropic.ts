// Owns Anthropic's messages: whole answers, and what the events of a stream mean.

import { type StreamOptions, startStream } from "./attached.js";
import { Endpoint, type EndpointOptions, type RequestOptions } from "./endpoint.js";
import { failure, membersOf, parseJson, readError, textOf } from "./failure.js";
import type { Decoder, FollowOptions } from "./follow.js";
import type { End, Part, Usage } from "./parts.js";
import type { Run } from "./run.js";
import type { SseEvent } from "./sse.js";
import { ToolCalls } from "./tool_calls.js";

const VERSION = "2023-06-01";

/** A request; any other field of Anthropic's may be there. */
export interface MessageRequest {
  readonly model: string;
  readonly max_tokens: number;
  readonly messages: readonly Readonly<Record<string, unknown>>[];
  readonly [member: string]: unknown;
}

/** A client of Anthropic's API. */
export class Anthropic {
  readonly #endpoint: Endpoint;
  readonly #follow: FollowOptions;

  constructor(options: EndpointOptions & FollowOptions) {
    const headers = { "anthropic-version": VERSION, ...options.headers };
    this.#endpoint = new Endpoint({ ...options, headers });
    this.#follow = options;
  }

  /** Return the whole answer as it comes. Aborting cancels it. Throws RequestError and the signal's reason. */
  async create(request: MessageRequest, options: RequestOptions = {}): Promise<unknown> {
    const url = this.#endpoint.url("messages");
    return this.#endpoint.sendJson(url, { method: "POST", body: { ...request, stream: false }, ...options });
  }

  /** Stream an answer. Leaving cancels it, unless it is resumable. */
  stream(request: MessageRequest, options: StreamOptions = {}): Run {
    const body = { ...request, stream: true };
    return startStream(this.#endpoint, "messages", body, new MessageDecoder(), options, this.#follow);
  }
}

type Members = Readonly<Record<string, unknown>>;

/** What the events of a stream mean. */
export class MessageDecoder implements Decoder {
  readonly #tools = new ToolCalls();
  #reason: string | null = null;
  #usage: Usage | null = null;

  take(event: SseEvent): readonly Part[] {
    const json = parseJson(event.data);
    const members = membersOf(json);
    const type = textOf(members["type"]) ?? event.event;
    if (type === "error" || event.event === "error") {
      return [{ type: "error", failure: readError(members["error"] ?? json ?? event.data) }];
    }
    if (json === undefined) {
      return [{ type: "error", failure: failure("The stream has an event that is not JSON.", { type: "stream" }) }];
    }
    switch (type) {
      case "message_start":
        this.#count(membersOf(members["message"])["usage"]);
        return [];
      case "content_block_start":
        return this.#block(members);
      case "content_block_delta":
        return this.#delta(members);
      case "message_delta":
        this.#reason = textOf(membersOf(members["delta"])["stop_reason"]) ?? this.#reason;
        this.#count(members["usage"]);
        return [];
      case "message_stop":
        return [{ type: "finished", reason: this.#reason, usage: this.#usage, calls: this.#tools.calls }];
      default:
        return []; // pings, and what may come one day
    }
  }

  closed(): End | null {
    return null;
  }

  #block(members: Members): Part[] {
    const block = membersOf(members["content_block"]);
    if (block["type"] !== "tool_use") return textPart(block["text"]);
    this.#tools.add({ index: indexOf(members), id: textOf(block["id"]), name: textOf(block["name"]) });
    return [{ type: "tool_calls", calls: this.#tools.calls }];
  }

  #delta(members: Members): Part[] {
    const delta = membersOf(members["delta"]);
    if (delta["type"] === "text_delta") return textPart(delta["text"]);
    if (delta["type"] !== "input_json_delta") return [];
    this.#tools.add({ index: indexOf(members), arguments: textOf(delta["partial_json"]) });
    return [{ type: "tool_calls", calls: this.#tools.calls }];
  }

  #count(given: unknown): void {
    const usage = membersOf(given);
    const [input, output] = [usage["input_tokens"], usage["output_tokens"]];
    if (typeof input !== "number" && typeof output !== "number") return;
    this.#usage = {
      inputTokens: typeof input === "number" ? input : (this.#usage?.inputTokens ?? null),
      outputTokens: typeof output === "number" ? output : (this.#usage?.outputTokens ?? null),
    };
  }
}

function indexOf(members: Members): number {
  return typeof members["index"] === "number" ? members["index"] : 0;
}

function textPart(given: unknown): Part[] {
  const text = textOf(given);
  return text === null ? [] : [{ type: "text", text }];
}
