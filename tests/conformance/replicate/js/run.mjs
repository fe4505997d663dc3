// One case with Replicate's npm client, unchanged: `node run.mjs <case> <base URL> <JSON argument>`.
// Prints one JSON object: what came back, or the error, and the HTTP calls that were made.

import Replicate from "replicate";

const [name, baseUrl, argument] = process.argv.slice(2);
const { model, prompt, input = { prompt }, id, url, key, auth = "r8_conformance" } = JSON.parse(argument);
const calls = [];

async function notingFetch(target, init) {
  const headers = Object.fromEntries(new Headers(init?.headers).entries());
  if (key && init?.method === "POST") headers["idempotency-key"] = key;
  const lost = { method: init?.method ?? "GET", path: new URL(target).pathname, status: 0 };
  const answer = await fetch(target, { ...init, headers }).catch((error) => {
    calls.push(lost);
    throw error;
  });
  calls.push({
    method: init?.method ?? "GET",
    path: new URL(target).pathname,
    status: answer.status,
    contentType: answer.headers.get("content-type"),
    authorized: "authorization" in headers,
    prefer: headers.prefer ?? null,
    applied: answer.headers.get("preference-applied"),
  });
  return answer;
}

const replicate = new Replicate({ auth, baseUrl, fetch: notingFetch });

async function collect(events) {
  const found = [];
  for await (const { event, data, id } of events) found.push({ event, data, id, isText: typeof data === "string" });
  return found;
}

const cases = {
  run: () => replicate.run(model, { input }),
  run_block_1: () => replicate.run(model, { input, wait: { mode: "block", timeout: 1 } }),
  run_poll: () => replicate.run(model, { input, wait: { mode: "poll", interval: 20 } }),
  stream: () => collect(replicate.stream(model, { input })),
  cancel: () => replicate.predictions.cancel(id),
  get: () => replicate.predictions.get(id),
  create: () => replicate.predictions.create({ model, input }),
  create_wait_120: () => replicate.predictions.create({ model, input, wait: 120 }),
  dates: async () => {
    const found = await replicate.predictions.get(id);
    return ["created_at", "started_at", "completed_at"].map((name) => new Date(found[name]).getTime());
  },
  paginate: async () => {
    const pages = [];
    for await (const page of replicate.paginate(replicate.predictions.list)) pages.push(page.map((one) => one.id));
    return pages;
  },
  raw: async () => {
    const answer = await notingFetch(url, { headers: { Accept: "text/event-stream" } });
    return { status: answer.status, body: await answer.text() };
  },
};

const report = { calls };
try {
  report.result = await cases[name]();
} catch (error) {
  report.error = { name: error.name, message: error.message, status: error.response?.status ?? null };
}
console.log(JSON.stringify(report));
process.exit(0);
