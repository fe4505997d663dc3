// Owns what a stream consists of, the same for all three APIs: parts in their order, and one end.

import type { Failure } from "./failure.js";
import type { ToolCall } from "./tool_calls.js";

/** The next piece of text. */
export interface TextPart {
  readonly type: "text";
  readonly text: string;
}

/** The tool calls as they stand, after one of them grew. */
export interface ToolCallsPart {
  readonly type: "tool_calls";
  readonly calls: readonly ToolCall[];
}

/** Tokens, as far as the API told. */
export interface Usage {
  readonly inputTokens: number | null;
  readonly outputTokens: number | null;
}

/** All came. */
export interface Finished {
  readonly type: "finished";
  /** The API's own word for why: `stop`, `length`, `end_turn`, …; null where it has none. */
  readonly reason: string | null;
  readonly usage: Usage | null;
  readonly calls: readonly ToolCall[];
}

/** Somebody cancelled it, or the reading of it. */
export interface Cancelled {
  readonly type: "cancelled";
}

/** The request was refused, or the generation failed. */
export interface Failed {
  readonly type: "error";
  readonly failure: Failure;
}

/** The stream closed without its end, and could not be resumed. What came is right. */
export interface Truncated {
  readonly type: "truncated";
  /** What cut it, where that is known. */
  readonly failure: Failure | null;
}

/** How a stream ended; exactly one ends every stream. */
export type End = Finished | Cancelled | Failed | Truncated;

/** What a stream consists of. */
export type Part = TextPart | ToolCallsPart | End;

/** Return whether nothing follows this part. */
export function isEnd(part: Part): part is End {
  return part.type !== "text" && part.type !== "tool_calls";
}

/** A stream, read as a whole. */
export interface Collected {
  readonly text: string;
  readonly end: End;
}

/** Read parts to the end. */
export async function collect(parts: AsyncIterable<Part>): Promise<Collected> {
  const texts: string[] = [];
  for await (const part of parts) {
    if (part.type === "text") texts.push(part.text);
    else if (isEnd(part)) return { text: texts.join(""), end: part };
  }
  return { text: texts.join(""), end: { type: "truncated", failure: null } };
}
