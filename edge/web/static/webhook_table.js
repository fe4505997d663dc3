// Owns the table of a webhook's calls.

import { element } from "./dom.js";
import { formatMoment } from "./format.js";

/** Fill `rows` with one row a call. */
export function fillDeliveries(rows, deliveries) {
  rows.replaceChildren(
    ...deliveries.map((call) =>
      element(
        "tr",
        "",
        element("td", "", call.event ?? ""),
        element("td", "", stateOf(call)),
        element("td", "", String(call.attempts ?? 0)),
        element("td", "", answerOf(call)),
        element("td", "", formatMoment(call.attempted_at)),
      ),
    ),
  );
}

function stateOf(call) {
  if (call.delivered) return "Delivered";
  return call.given_up ? "Given up" : "Pending";
}

function answerOf(call) {
  return [call.last_status || "", call.last_error || ""].filter(Boolean).join(" ") || "–";
}
