// Owns what went wrong, as one value: from the error bodies of all three APIs, from errors in
// mid-stream, and from the network.

/** What went wrong. */
export interface Failure {
  /** For people. */
  readonly message: string;
  /** The API's own word for the kind of error; `network` and `stream` are ours. */
  readonly type: string | null;
  /** The API's own code, where it has one. */
  readonly code: string | null;
  /** The HTTP status; null for an error that came in mid-stream, or without an answer. */
  readonly status: number | null;
  /** When a repeat helps, if the server said so. */
  readonly retryAfterMs: number | null;
}

/** A request was refused or got no answer. */
export class RequestError extends Error {
  readonly failure: Failure;

  constructor(failure: Failure, cause?: unknown) {
    super(failure.message, cause === undefined ? undefined : { cause });
    this.name = "RequestError";
    this.failure = failure;
  }
}

type Members = Readonly<Record<string, unknown>>;

/** Return `value` as an object, whatever it is; without members if it is none. */
export function membersOf(value: unknown): Members {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Members) : {};
}

/** Return `value` if it is text that says something, else null. */
export function textOf(value: unknown): string | null {
  return typeof value === "string" && value !== "" ? value : null;
}

/** Return the JSON of `text`; undefined for anything else. */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

/** Make a failure. */
export function failure(message: string, rest: Partial<Omit<Failure, "message">> = {}): Failure {
  return { type: null, code: null, status: null, retryAfterMs: null, ...rest, message };
}

/** Read what stands under `error` in OpenAI's and Anthropic's bodies and events. */
export function readError(error: unknown, rest: Partial<Failure> = {}): Failure {
  const members = membersOf(error);
  const message = textOf(error) ?? textOf(members["message"]) ?? rest.message ?? "The server reported an error.";
  return failure(message, { ...rest, type: textOf(members["type"]), code: textOf(members["code"]) });
}

/** Read an answer that is an error, in any of the three shapes or none. Takes its body. */
export async function readFailure(response: Response): Promise<Failure> {
  const body = membersOf(parseJson(await response.text().catch(() => "")));
  const rest = {
    message: `The server answered ${response.status}.`,
    status: response.status,
    retryAfterMs: retryAfterMs(response.headers.get("retry-after")),
  };
  if (body["error"] !== undefined) return readError(body["error"], rest);
  // Problem details (RFC 9457).
  const message = textOf(body["detail"]) ?? textOf(body["title"]) ?? rest.message;
  return failure(message, { ...rest, type: textOf(body["type"]), code: textOf(body["code"]) });
}

/** Make the failure of a request or stream that broke on its way. */
export function brokenBy(error: unknown): Failure {
  if (error instanceof RequestError) return error.failure;
  const message = error instanceof Error ? error.message : String(error);
  return failure(message, { type: "network" });
}

function retryAfterMs(header: string | null): number | null {
  const seconds = Number(header ?? "");
  return header !== null && /^\d+$/.test(header.trim()) && Number.isFinite(seconds) ? seconds * 1000 : null;
}
