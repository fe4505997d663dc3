// Bodies for the tests, cut in every way.

/** UTF-8. */
export function bytes(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

/** `data` cut at these places. */
export function cut(data: Uint8Array, ...places: number[]): Uint8Array[] {
  const all = [0, ...places, data.length];
  return all.slice(1).map((end, at) => data.slice(all[at], end));
}

/** `data` in one piece, in two for every place, in pieces of one byte, and with empty ones between. */
export function* everyCut(data: Uint8Array): Generator<Uint8Array[]> {
  yield [data];
  for (let place = 0; place <= data.length; place += 1) yield cut(data, place);
  const single = cut(data, ...Array.from({ length: Math.max(0, data.length - 1) }, (_, at) => at + 1));
  yield single;
  yield single.flatMap((byte) => [new Uint8Array(), byte]);
}

/** A body of chunks. */
export function bodyOf(chunks: readonly Uint8Array[]): ReadableStream<Uint8Array> {
  return new ReadableStream({
    start(controller) {
      for (const chunk of chunks) controller.enqueue(chunk);
      controller.close();
    },
  });
}
