// Owns the field for the API token. It is shown when the API answers 401, and only then.

import { byId, setText, show } from "./dom.js";

let pending = null;

/** Ask for a token; those who ask while it is asked for get the same answer. */
export function askForToken(wasRefused) {
  pending ??= ask(wasRefused).finally(() => {
    pending = null;
  });
  return pending;
}

function ask(wasRefused) {
  const panel = byId("token");
  const field = byId("token-value");
  if (wasRefused) setText(byId("token-why"), "That token was not accepted. Try another one.");
  field.value = "";
  show(panel, true);
  field.focus();
  return new Promise((resolve) => {
    panel.addEventListener(
      "submit",
      (event) => {
        event.preventDefault();
        show(panel, false);
        resolve(field.value);
      },
      { once: true },
    );
  });
}
