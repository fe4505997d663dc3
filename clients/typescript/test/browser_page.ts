// A page with the hook, for the tests in a real browser (tests/browser/test_typescript_hook.py).
//
// `?base=` is the edge's URL, `?api=` one of the clients below. What is shown is what the hook says.

import { createElement, Fragment, StrictMode, useState } from "react";
import { createRoot } from "react-dom/client";

import { Anthropic } from "../src/anthropic.js";
import { OpenAI } from "../src/openai.js";
import { usePrediction } from "../src/react.js";
import { Replicate } from "../src/replicate.js";
import type { Run } from "../src/run.js";

const query = new URLSearchParams(location.search);
// Patient, since an edge may be long in starting on a busy machine.
const patience = { reconnects: 40 };
const options = { baseUrl: query.get("base") ?? "", token: query.get("token") ?? undefined, ...patience };
const model = query.get("model") ?? "";
const replicate = new Replicate(options);
const openai = new OpenAI(options);
const anthropic = new Anthropic(options);

const APIS: Readonly<Record<string, (prompt: string) => Run>> = {
  replicate: (prompt) => replicate.stream({ model, input: { prompt, max_tokens: 100_000 } }),
  openai: (prompt) => openai.stream(chat(prompt)),
  "openai-resumable": (prompt) => openai.stream(chat(prompt), { resumable: true }),
  anthropic: (prompt) => anthropic.stream(chat(prompt)),
  "anthropic-resumable": (prompt) => anthropic.stream(chat(prompt), { resumable: true }),
};

function chat(prompt: string): { model: string; max_tokens: number; messages: { role: string; content: string }[] } {
  return { model, max_tokens: 100_000, messages: [{ role: "user", content: prompt }] };
}

const makeRun = APIS[query.get("api") ?? "replicate"] as (prompt: string) => Run;

function Ask() {
  const { status, text, end, error, start, stop } = usePrediction(makeRun);
  const [prompt, setPrompt] = useState("");
  const facts = { id: "facts", "data-status": status, "data-end": JSON.stringify(end), "data-error": error?.message };
  return createElement(
    Fragment,
    null,
    createElement("textarea", {
      id: "prompt",
      value: prompt,
      onChange: (event: { target: { value: string } }) => setPrompt(event.target.value),
    }),
    createElement("button", { id: "start", onClick: () => start(prompt) }, "Start"),
    createElement("button", { id: "stop", onClick: stop }, "Stop"),
    createElement("pre", { id: "text" }, text),
    createElement("p", facts, status),
  );
}

function Page() {
  const [isThere, setIsThere] = useState(true);
  return createElement(
    Fragment,
    null,
    createElement("button", { id: "take-off", onClick: () => setIsThere(false) }, "Take off"),
    isThere ? createElement(Ask) : null,
  );
}

const place = document.querySelector("#root");
if (place !== null) createRoot(place).render(createElement(StrictMode, null, createElement(Page)));
