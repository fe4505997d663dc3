// The playground: a form that makes a prediction and follows it, the same as code, and what came before.

import { Api, ApiError } from "./api.js";
import { CodeCard } from "./code_card.js";
import { byId, element, setText, show } from "./dom.js";
import { formatCount, isTerminal, PHASE_LABELS, phaseOf, shorten } from "./format.js";
import { RecentPredictions } from "./recent.js";
import { PARAMETERS, readFields, serverFaults, TEXTS, writeFields } from "./request.js";
import { RunView } from "./run_view.js";
import { requestSnippets } from "./snippets.js";
import { askForToken } from "./token_panel.js";

const { prefix } = document.body.dataset;
const api = new Api(prefix, askForToken);
const form = byId("form");
const code = new CodeCard(byId("code"));
const recent = new RecentPredictions();
const run = new RunView(byId("run"), api, {
  idleLabel: "Ready",
  idleHint: "The output of your next run appears here.",
  changed: (prediction) => changed(prediction),
});
let models = [];
let isCreating = false;

form.addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
form.addEventListener("reset", () => setTimeout(fieldsChanged));
form.addEventListener("input", fieldsChanged);
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
byId("model").addEventListener("change", drawModel);
byId("stop-button").addEventListener("click", () => run.cancel());
if (/Mac|iPhone|iPad/.test(navigator.platform)) setText(byId("run-key"), "⌘ ↵");
byId("parameters").open = matchMedia("(min-width: 860px)").matches;

drawRecent();
drawButtons();
await loadModels();
await loadFrom(new URLSearchParams(location.search).get("from"));
fieldsChanged();

async function loadModels() {
  for (let attempt = 0; models.length === 0; attempt += 1) {
    try {
      models = await api.listModels();
      fault("form", "");
      if (models.length === 0) throw new Error("The server serves no model.");
    } catch (error) {
      fault("form", `${error.message} Trying again.`);
      await new Promise((resolve) => setTimeout(resolve, Math.min(10_000, 500 * 2 ** attempt)));
    }
  }
  byId("model").replaceChildren(...models.map(({ name }) => new Option(name, name)));
  drawModel();
}

/** Fill the form from an earlier prediction. */
async function loadFrom(id) {
  if (!id) return;
  try {
    const prediction = await api.getPrediction(id);
    const fields = writeFields(prediction.input ?? {});
    for (const [name, value] of Object.entries(fields)) byId(name).value = value;
    if (models.some((model) => model.name === prediction.model)) byId("model").value = prediction.model;
    if (fields.system_prompt) byId("system-fold").open = true;
    drawModel();
  } catch (error) {
    fault("form", `That prediction could not be loaded: ${error.message}`);
  }
}

async function start() {
  if (isCreating || isRunning()) return;
  const { input, faults } = readFields(fields());
  showFaults(faults);
  if (Object.keys(faults).length > 0) return;
  isCreating = true;
  drawButtons();
  try {
    const prediction = await api.createPrediction(byId("model").value, input);
    recent.put({
      id: prediction.id,
      model: prediction.model,
      prompt: shorten(input.prompt, 80),
      status: prediction.status,
      created_at: prediction.created_at,
    });
    byId("page-anchor").href = `${prefix}/p/${prediction.id}`;
    setText(byId("page-anchor"), prediction.id);
    show(byId("page-link"), true);
    run.show(prediction);
    drawRecent();
    code.show(snippets());
    if (matchMedia("(max-width: 859px)").matches) byId("run").scrollIntoView({ block: "start" });
  } catch (error) {
    const found = error instanceof ApiError ? serverFaults(error.fields) : {};
    showFaults(Object.keys(found).length > 0 ? found : { form: error.message });
  } finally {
    isCreating = false;
    drawButtons();
  }
}

function changed(prediction) {
  drawButtons();
  recent.put({ id: prediction.id, status: prediction.status });
  drawRecent();
}

function isRunning() {
  return run.prediction !== null && !isTerminal(run.prediction.status);
}

function fields() {
  return Object.fromEntries(new FormData(form));
}

function fieldsChanged() {
  const given = fields();
  const { faults } = readFields(given);
  delete faults.prompt; // said when Run is pressed, not while it is written
  showFaults(faults);
  const set = PARAMETERS.filter((name) => (given[name] ?? "").trim() !== "").length;
  setText(byId("parameters-count"), set > 0 ? `${set} set` : "");
  code.show(snippets());
}

function snippets() {
  const { input } = readFields(fields());
  const name = byId("model").value || "owner/name";
  const base = new URL(`${prefix}/`, location.href).href.replace(/\/$/, "");
  return requestSnippets(base, name, { ...input, prompt: input.prompt || "…" }, api.hasToken);
}

function drawModel() {
  const model = models.find(({ name }) => name === byId("model").value);
  const badge = byId("model-state");
  if (model === undefined) return;
  show(badge, model.state !== "ready");
  badge.dataset.state = model.state;
  setText(badge, model.state);
  const facts = [];
  if (model.context_tokens) facts.push(`${formatCount(model.context_tokens)} tokens of context`);
  if (model.engine && !model.chat_template) facts.push("no chat template: it continues your text");
  setText(byId("model-facts"), facts.join(" · "));
  show(byId("system-fold"), !model.engine || model.chat_template);
  byId("system_prompt").disabled = Boolean(model.engine) && !model.chat_template;
}

function drawButtons() {
  byId("run-button").disabled = isCreating || isRunning();
  show(byId("run-button"), !isRunning());
  show(byId("stop-button"), isRunning());
}

function showFaults(faults) {
  for (const name of [...TEXTS, ...PARAMETERS, "form"]) fault(name, faults[name] ?? "");
  const first = [...TEXTS, ...PARAMETERS].find((name) => faults[name]);
  if (first && document.activeElement === byId("run-button")) byId(first).focus();
}

function fault(name, text) {
  const node = byId(`${name}-fault`);
  setText(node, text);
  show(node, text !== "");
  if (name === "form") return;
  const field = byId(name);
  if (text) {
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-describedby", node.id);
  } else {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-describedby");
  }
}

function drawRecent() {
  const entries = recent.list();
  show(byId("recent"), entries.length > 0);
  byId("recent-list").replaceChildren(
    ...entries.map((entry) => {
      const phase = phaseOf(entry.status, true);
      const dot = element("span", "dot");
      dot.dataset.phase = phase;
      const link = element("a", "", element("span", "recent-prompt", entry.prompt || entry.id));
      link.href = `${prefix}/p/${entry.id}`;
      const state = element("span", "recent-state", PHASE_LABELS[phase]);
      return element("li", "", dot, link, element("span", "recent-model", entry.model), state);
    }),
  );
}
