// Owns the card that shows one prediction running: its phase, output, meters and cancel button. It
// reads the stream while the prediction runs, and asks the API once at the end for the exact record.

import { ApiError } from "./api.js";
import { announce, makeCopyButton, setText, show } from "./dom.js";
import {
  formatCount,
  formatDuration,
  formatRate,
  isTerminal,
  joinOutput,
  PHASE_HINTS,
  PHASE_LABELS,
  phaseOf,
  secondsBetween,
} from "./format.js";
import { OutputView } from "./output_view.js";
import { RateMeter } from "./rate_meter.js";
import { PredictionStream } from "./stream.js";

const TICK_MS = 100;
const REPLAY_MS = 150;
const FRESH_MS = 1000;
const STEPS = ["queued", "prefill", "streaming", "end"];
const PLACES = { idle: -1, queued: 0, prefill: 1, streaming: 2, done: 3, canceled: 3, failed: 3 };

export class RunView {
  #root;
  #parts = {};
  #api;
  #listener;
  #output;
  #meter = new RateMeter();
  #stream = null;
  #prediction = null;
  #ticker = null;
  #firstAtMs = null;
  #connectedAtMs = 0;
  #isCanceling = false;

  /**
   * `listener` may have `changed(prediction)`, `event(event)` and `logs(text)`; and `idleLabel` and
   * `idleHint`, what is said while there is no prediction.
   */
  constructor(root, api, listener = {}) {
    this.#root = root;
    this.#api = api;
    this.#listener = listener;
    for (const node of root.querySelectorAll("[data-part]")) this.#parts[node.dataset.part] = node;
    this.#output = new OutputView(this.#parts.output);
    makeCopyButton(this.#parts.copy, () => this.#output.text);
    this.#parts.cancel.addEventListener("click", () => this.cancel());
    const hurry = () => {
      if (!document.hidden) this.#stream?.hurry();
    };
    document.addEventListener("visibilitychange", hurry);
    globalThis.addEventListener("online", hurry);
    this.#draw();
  }

  /** The prediction as far as it is known; while it runs with `first_output_at`, if that was seen. */
  get prediction() {
    return this.#prediction;
  }

  /** Show a prediction, and follow it to its end if it runs. */
  show(prediction) {
    this.leave();
    this.#prediction = prediction;
    this.#isCanceling = false;
    this.#meter.reset();
    this.#firstAtMs = null;
    this.#notice("");
    this.#output.replace("");
    if (isTerminal(prediction.status)) this.#settle(prediction);
    else this.#follow();
    this.#draw();
  }

  /** Stop following; the prediction goes on. */
  leave() {
    this.#stream?.close();
    this.#stream = null;
    clearInterval(this.#ticker);
    this.#ticker = null;
  }

  /** Show nothing. */
  clear() {
    this.leave();
    this.#prediction = null;
    this.#output.replace("");
    this.#notice("");
    this.#draw();
  }

  /** Say something above the output; nothing when `text` is empty. */
  notice(text) {
    this.#notice(text);
  }

  /** Cancel it, once. */
  async cancel() {
    const prediction = this.#prediction;
    if (this.#isCanceling || prediction === null || isTerminal(prediction.status)) return;
    this.#isCanceling = true;
    this.#draw();
    try {
      const canceled = await this.#api.cancelPrediction(prediction);
      if (this.#prediction?.id === prediction.id) this.#settle(canceled);
    } catch (error) {
      this.#isCanceling = false;
      this.#notice(`Could not cancel: ${error.message}`);
      this.#draw();
    }
  }

  #follow() {
    const { id } = this.#prediction;
    const isOurs = () => this.#prediction?.id === id;
    this.#stream = new PredictionStream(
      this.#api.streamUrl(this.#prediction),
      {
        connected: () => {
          this.#connectedAtMs = performance.now();
          this.#notice("");
        },
        interrupted: () => this.#notice("Connection lost. Reconnecting; nothing is lost."),
        start: (facts) => this.#begin(facts),
        output: (text) => this.#append(text),
        tokens: (count) => this.#count(count),
        logs: (text) => this.#listener.logs?.(text),
        error: (detail) => this.#change({ error: detail }),
        done: () => isOurs() && this.#finish(id),
        event: (event) => this.#listener.event?.(event),
      },
      async () => isTerminal((await this.#api.getPrediction(id)).status),
    );
    this.#stream.open();
    this.#ticker = setInterval(() => this.#drawMeters(), TICK_MS);
  }

  #begin(facts) {
    const metrics = { ...this.#prediction.metrics, input_token_count: facts.input_token_count };
    this.#change({ status: "processing", started_at: facts.started_at, metrics });
  }

  #append(text) {
    const isFirst = this.#output.text === "";
    this.#output.append(text);
    if (!isFirst) return;
    // What is replayed came at some time before: the record tells at the end.
    const nowMs = this.#api.now();
    const isFresh = nowMs - Date.parse(this.#prediction.created_at) < FRESH_MS;
    if (isFresh || !this.#isReplaying(performance.now())) this.#firstAtMs = nowMs;
    const firstAt = this.#firstAtMs === null ? null : new Date(nowMs).toISOString();
    this.#change({ status: "processing", first_output_at: firstAt });
  }

  #isReplaying(nowMs) {
    return nowMs - this.#connectedAtMs < REPLAY_MS;
  }

  #count(tokens) {
    const nowMs = performance.now();
    this.#meter.add(tokens, nowMs, { replayed: this.#isReplaying(nowMs) });
  }

  #change(members) {
    if (this.#prediction === null || isTerminal(this.#prediction.status)) return;
    this.#prediction = { ...this.#prediction, ...members };
    this.#draw();
    this.#listener.changed?.(this.#prediction);
  }

  /** Fetch the exact record, until it is there: the stream may be ahead of a service that restarts. */
  async #finish(id) {
    for (let attempt = 0; this.#prediction?.id === id; attempt += 1) {
      try {
        const prediction = await this.#api.getPrediction(id);
        if (this.#prediction?.id === id) this.#settle(prediction);
        return;
      } catch (error) {
        if (error instanceof ApiError && error.status < 500 && error.status !== 429) {
          this.#notice(error.message);
          return;
        }
        this.#notice("The server cannot be reached for the final figures. Trying again.");
        await new Promise((resolve) => setTimeout(resolve, Math.min(10_000, 500 * 2 ** attempt)));
      }
    }
  }

  #settle(prediction) {
    if (!isTerminal(prediction.status)) return;
    this.leave();
    this.#notice("");
    this.#prediction = prediction;
    this.#output.replace(joinOutput(prediction.output));
    this.#draw();
    announce(`${PHASE_LABELS[this.#phase()]}. ${formatCount(prediction.metrics?.output_token_count)} tokens.`);
    this.#listener.changed?.(prediction);
  }

  #phase() {
    return this.#prediction === null ? "idle" : phaseOf(this.#prediction.status, this.#output.text !== "");
  }

  #draw() {
    const { pill, label, hint, copy, cancel, end, error } = this.#parts;
    const prediction = this.#prediction;
    const phase = this.#phase();
    const isRunning = prediction !== null && !isTerminal(prediction.status);
    if (this.#root.dataset.phase !== phase && isRunning) announce(PHASE_LABELS[phase]);
    this.#root.dataset.phase = phase;
    pill.dataset.phase = phase;
    setText(label, (phase === "idle" && this.#listener.idleLabel) || PHASE_LABELS[phase]);
    setText(end, PLACES[phase] === 3 ? PHASE_LABELS[phase] : "Done");
    const hasText = this.#output.text !== "";
    setText(hint, this.#hintOf(phase));
    show(hint, !hasText && hint.textContent !== "");
    show(this.#parts.output, hasText);
    show(copy, hasText);
    show(cancel, isRunning);
    cancel.disabled = this.#isCanceling;
    setText(cancel, this.#isCanceling ? "Canceling…" : "Cancel");
    show(error, Boolean(prediction?.error));
    setText(this.#parts["error-text"], prediction?.error ?? "");
    this.#drawSteps(phase);
    this.#drawMeters();
  }

  #hintOf(phase) {
    if (this.#prediction?.data_removed) return "Input and output were removed after their retention.";
    return (phase === "idle" && this.#listener.idleHint) || PHASE_HINTS[phase];
  }

  #drawSteps(phase) {
    const place = PLACES[phase];
    const spans = this.#spans();
    const hasRun = Boolean(this.#prediction?.started_at);
    const seen = [true, hasRun, this.#output.text !== "" || spans.streaming !== null, true];
    STEPS.forEach((name, index) => {
      const step = this.#root.querySelector(`[data-step="${name}"]`);
      const isPast = index < place && (place < 3 || seen[index]);
      step.dataset.state = index === place ? "current" : isPast ? "past" : "future";
      if (index === place) step.setAttribute("aria-current", "step");
      else step.removeAttribute("aria-current");
    });
  }

  /** Seconds spent in each phase so far; null for one that was not reached. */
  #spans() {
    const prediction = this.#prediction;
    if (prediction === null) return { queued: null, prefill: null, streaming: null, end: null };
    const { created_at: created, started_at: started, completed_at: completed, metrics } = prediction;
    const nowMs = this.#api.now();
    const until = completed ? Date.parse(completed) : nowMs;
    const firstMs =
      metrics?.time_to_first_token !== undefined
        ? Date.parse(created) + metrics.time_to_first_token * 1000
        : this.#firstAtMs;
    const span = (from, to) => Math.max(0, (to - from) / 1000);
    const isUnknown = firstMs === null && this.#output.text !== "";
    const startedMs = started ? Date.parse(started) : null;
    return {
      queued: span(Date.parse(created), startedMs ?? until),
      prefill: startedMs === null || isUnknown ? null : span(startedMs, firstMs ?? until),
      streaming: firstMs === null || startedMs === null ? null : span(firstMs, until),
      end: secondsBetween(created, completed),
    };
  }

  #drawMeters() {
    const prediction = this.#prediction;
    const spans = this.#spans();
    for (const name of STEPS) {
      const time = this.#root.querySelector(`[data-step="${name}"] .step-time`);
      setText(time, spans[name] === null ? "" : formatDuration(spans[name]));
    }
    const { tokens, rate, first, total } = this.#parts;
    const metrics = prediction?.metrics ?? {};
    const isEnded = prediction !== null && isTerminal(prediction.status);
    const counted = isEnded ? metrics.output_token_count : this.#meter.total;
    setText(tokens, prediction === null ? "–" : formatCount(counted));
    setText(rate, formatRate(isEnded ? metrics.tokens_per_second : this.#meter.rate()));
    const reached = spans.queued !== null && spans.streaming !== null ? spans.queued + spans.prefill : null;
    setText(first, formatDuration(metrics.time_to_first_token ?? reached));
    setText(total, formatDuration(prediction === null ? null : this.#elapsed(spans)));
  }

  #elapsed(spans) {
    return spans.end ?? (this.#api.now() - Date.parse(this.#prediction.created_at)) / 1000;
  }

  #notice(text) {
    setText(this.#parts.notice, text);
    show(this.#parts.notice, text !== "");
  }
}
