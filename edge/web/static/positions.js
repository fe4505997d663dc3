// Owns event ids: positions in a prediction's log, `<seconds>:<sequence>[.<part>]`. Pure.

const ID = /^(\d+):(\d+)(?:\.(\d+))?$/;

/** The position that an id names; null for anything else. */
export function parsePosition(id) {
  const match = ID.exec(id);
  if (match === null) return null;
  return { sequence: Number(match[2]), part: Number(match[3] ?? 0) };
}

/** Whether `id` is further on than `last`. Ids that are no positions count as new. */
export function isNewer(id, last) {
  const here = parsePosition(id);
  const there = parsePosition(last);
  if (here === null || there === null) return true;
  if (here.sequence !== there.sequence) return here.sequence > there.sequence;
  return here.part > there.part;
}
