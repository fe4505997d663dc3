// The page of one prediction: loads it, follows it, and shows everything the API says of it.

import { Api, ApiError } from "./api.js";
import { CodeCard } from "./code_card.js";
import { byId, element, fillFacts, makeCopyButton, setText, show } from "./dom.js";
import { EventTable } from "./event_table.js";
import { formatAge, formatCount, formatDuration, formatMoment, formatRate, isTerminal, shorten } from "./format.js";
import { RunView } from "./run_view.js";
import { predictionSnippets } from "./snippets.js";
import { askForToken } from "./token_panel.js";
import { fillDeliveries } from "./webhook_table.js";

const LONG_TEXTS = ["prompt", "system_prompt", "messages", "json_schema"];
const INPUT_TITLES = { prompt: "Prompt", system_prompt: "System prompt", json_schema: "JSON schema" };

const { prefix, prediction: id } = document.body.dataset;
const api = new Api(prefix, askForToken);
const events = new EventTable(api);
const code = new CodeCard(byId("code"));
const run = new RunView(byId("run"), api, {
  changed: (prediction) => draw(prediction),
  event: (event) => events.add(event),
  logs: (text) => appendLog(text),
});
let shownInput = "";

byId("webhooks-refresh").addEventListener("click", () => drawDeliveries());
makeCopyButton(byId("copy-link"), () => run.prediction?.urls.web ?? location.href);
load();

async function load() {
  for (let attempt = 0; ; attempt += 1) {
    try {
      const prediction = await api.getPrediction(id);
      show(byId("prediction"), true);
      delete byId("prediction").dataset.state;
      setText(byId("logs-text"), "");
      run.show(prediction);
      draw(prediction);
      return;
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) {
        show(byId("missing"), true);
        show(byId("prediction"), false);
        return;
      }
      const isFinal = error instanceof ApiError && error.status < 500 && error.status !== 429;
      show(byId("prediction"), true);
      run.notice(isFinal ? error.message : `${error.message} Trying again.`);
      if (isFinal) return;
      await new Promise((resolve) => setTimeout(resolve, Math.min(10_000, 500 * 2 ** attempt)));
    }
  }
}

function draw(prediction) {
  const isEnded = isTerminal(prediction.status);
  document.title = `${titleOf(prediction)} · Tailrace`;
  setText(byId("model"), prediction.model);
  setText(byId("age"), ` · ${formatAge((api.now() - Date.parse(prediction.created_at)) / 1000)}`);
  show(byId("reuse"), !prediction.data_removed);
  drawInput(prediction);
  fillFacts(byId("timing"), timingOf(prediction));
  fillFacts(byId("tokens"), tokensOf(prediction.metrics ?? {}));
  code.show(predictionSnippets(prediction, api.hasToken));
  events.describe(prediction);
  if (!isEnded) return;
  setText(byId("logs-text"), prediction.logs ?? "");
  show(byId("logs"), Boolean(prediction.logs));
  if (prediction.webhook) drawDeliveries();
}

function titleOf(prediction) {
  const status = { succeeded: "Done", failed: "Failed", canceled: "Canceled" }[prediction.status] ?? "Running";
  return `${status}: ${shorten(prediction.input?.prompt ?? prediction.model, 40)}`;
}

function timingOf(prediction) {
  const metrics = prediction.metrics ?? {};
  const toFirst = metrics.time_to_first_token;
  const firstAt =
    toFirst === undefined ? prediction.first_output_at : new Date(Date.parse(prediction.created_at) + toFirst * 1000).toISOString();
  const facts = [
    ["Created", moment(prediction.created_at)],
    ["Started", moment(prediction.started_at)],
    ["First token", moment(firstAt)],
    ["Completed", moment(prediction.completed_at)],
  ];
  if (prediction.deadline) facts.push(["Deadline", moment(prediction.deadline)]);
  facts.push(["Time to first token", formatDuration(toFirst)]);
  facts.push(["Run time", formatDuration(metrics.predict_time)]);
  facts.push(["Total time", formatDuration(metrics.total_time)]);
  return facts;
}

function moment(text) {
  if (!text) return "–";
  const node = element("time", "", formatMoment(text));
  node.dateTime = text;
  node.title = text;
  return node;
}

function tokensOf(metrics) {
  return [
    ["Input", formatCount(metrics.input_token_count)],
    ["Output", formatCount(metrics.output_token_count)],
    ["Tokens/s", formatRate(metrics.tokens_per_second)],
  ];
}

function drawInput(prediction) {
  const input = prediction.input ?? {};
  const state = JSON.stringify([input, prediction.data_removed]);
  if (state === shownInput) return;
  shownInput = state;
  const body = byId("input-body");
  const settings = Object.entries(input).filter(([name]) => !LONG_TEXTS.includes(name));
  show(byId("settings-card"), settings.length > 0);
  fillFacts(byId("settings"), settings.map(([name, value]) => [name, settingNode(value)]));
  if (prediction.data_removed) {
    body.replaceChildren(element("p", "hint", "Removed after its retention."));
    return;
  }
  const texts = ["system_prompt", "prompt", "json_schema"].filter((name) => input[name]);
  body.replaceChildren(
    ...texts.map((name) => textBlock(INPUT_TITLES[name], String(input[name]))),
    ...(input.messages ?? []).map((turn) => textBlock(turn.role, String(turn.content))),
  );
  if (!body.hasChildNodes()) body.append(element("p", "hint", "Nothing that this page could show."));
}

function settingNode(value) {
  if (!Array.isArray(value)) return typeof value === "string" ? value : JSON.stringify(value);
  const codes = value.map((item) => element("code", "", JSON.stringify(item)));
  return element("span", "codes", ...codes);
}

function textBlock(title, text) {
  const box = element("div", "text-box", text);
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", title);
  return element("div", "turn", element("h3", "", title), box);
}

function appendLog(text) {
  const log = byId("logs-text");
  log.append(log.hasChildNodes() ? `\n${text}` : text);
  show(byId("logs"), true);
}

async function drawDeliveries() {
  try {
    const deliveries = await api.listWebhookDeliveries(id);
    fillDeliveries(byId("webhooks-rows"), deliveries);
    show(byId("webhooks"), deliveries.length > 0);
  } catch {
    // The page is whole without them.
  }
}
