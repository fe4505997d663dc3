// Owns tool calls as they grow: pieces are merged by their index. Pure.
//
// The first piece of a call names it; later ones add to its arguments. Some servers repeat id and name
// in later pieces: they replace, never append.

/** A call that the model asks for. */
export interface ToolCall {
  /** Its place among the calls, or among the content blocks of a message. */
  readonly index: number;
  readonly id: string;
  readonly name: string;
  /** JSON text; whole when the stream has finished. */
  readonly arguments: string;
}

/** What one piece says; absent members say nothing. */
export interface ToolCallPiece {
  readonly index: number;
  readonly id?: string | null;
  readonly name?: string | null;
  readonly arguments?: string | null;
}

/** The calls of one stream. */
export class ToolCalls {
  readonly #calls = new Map<number, ToolCall>();

  /** Merge a piece. */
  add(piece: ToolCallPiece): void {
    const before = this.#calls.get(piece.index);
    this.#calls.set(piece.index, {
      index: piece.index,
      id: piece.id || (before?.id ?? ""),
      name: piece.name || (before?.name ?? ""),
      arguments: (before?.arguments ?? "") + (piece.arguments ?? ""),
    });
  }

  /** The calls by their index. */
  get calls(): readonly ToolCall[] {
    return [...this.#calls.values()].sort((a, b) => a.index - b.index);
  }
}
