// Owns how values are said to people, and what a prediction's state is called. Pure.

const TERMINAL = new Set(["succeeded", "failed", "canceled", "aborted"]);

/** Whether a prediction of this status never changes again. */
export function isTerminal(status) {
  return TERMINAL.has(status);
}

/** The state a reader sees: finer than the status, since prefill and decoding feel different. */
export function phaseOf(status, hasOutput) {
  switch (status) {
    case "starting":
      return "queued";
    case "processing":
      return hasOutput ? "streaming" : "prefill";
    case "succeeded":
      return "done";
    case "failed":
      return "failed";
    case "canceled":
    case "aborted":
      return "canceled";
    default:
      return "idle";
  }
}

export const PHASE_LABELS = {
  idle: "Loading",
  queued: "Queued",
  prefill: "Prefill",
  streaming: "Streaming",
  done: "Done",
  canceled: "Canceled",
  failed: "Failed",
};

export const PHASE_HINTS = {
  idle: "",
  queued: "Waiting for a free slot.",
  prefill: "The model is reading the input.",
  streaming: "",
  done: "The model ended without any text.",
  canceled: "It was canceled before there was any text.",
  failed: "",
};

/** `output` of the API as one text: a list of pieces, a string, or null. */
export function joinOutput(output) {
  if (output === null || output === undefined) return "";
  if (Array.isArray(output)) return output.join("");
  return typeof output === "string" ? output : JSON.stringify(output, null, 2);
}

/** Seconds, short: `85 ms`, `1.24 s`, `12.4 s`, `3 min 05 s`, `2 h 03 min`. */
export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const s = Math.max(0, seconds);
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 9.995) return `${s.toFixed(2)} s`;
  if (s < 59.95) return `${s.toFixed(1)} s`;
  const whole = Math.round(s);
  const two = (n) => String(n).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

/** A whole number with thin spaces between thousands. */
export function formatCount(count) {
  if (count === null || count === undefined || !Number.isFinite(count)) return "–";
  return String(Math.round(count)).replace(/\B(?=(\d{3})+$)/g, "\u2009");
}

/** Tokens a second: two or three digits that mean something. */
export function formatRate(rate) {
  if (rate === null || rate === undefined || !Number.isFinite(rate) || rate <= 0) return "–";
  return rate < 100 ? rate.toFixed(1) : formatCount(rate);
}

/** How long ago, roughly: `just now`, `5 min ago`, `3 h ago`, `2 days ago`. */
export function formatAge(seconds) {
  if (seconds < 45) return "just now";
  if (seconds < 3570) return `${Math.max(1, Math.round(seconds / 60))} min ago`;
  if (seconds < 84600) return `${Math.round(seconds / 3600)} h ago`;
  const days = Math.round(seconds / 86400);
  return days === 1 ? "1 day ago" : `${days} days ago`;
}

/** A moment of the API in local time, with milliseconds; the reader's own date is left out. */
export function formatMoment(text, now = new Date()) {
  const moment = new Date(text);
  if (!text || Number.isNaN(moment.getTime())) return "–";
  const two = (n) => String(n).padStart(2, "0");
  const time = `${two(moment.getHours())}:${two(moment.getMinutes())}:${two(moment.getSeconds())}`;
  const clock = `${time}.${String(moment.getMilliseconds()).padStart(3, "0")}`;
  if (moment.toDateString() === now.toDateString()) return clock;
  return `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())} ${clock}`;
}

/** Seconds from one moment of the API to another; null unless both are there. */
export function secondsBetween(begin, end) {
  if (!begin || !end) return null;
  const span = (Date.parse(end) - Date.parse(begin)) / 1000;
  return Number.isFinite(span) ? Math.max(0, span) : null;
}

/** The start of a text on one line. */
export function shorten(text, limit) {
  const line = String(text).replace(/\s+/g, " ").trim();
  const characters = Array.from(line);
  return characters.length <= limit ? line : `${characters.slice(0, limit - 1).join("")}…`;
}
