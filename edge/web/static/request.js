// Owns what the playground's fields mean: texts to the `input` of a create, and back. Pure.

export const DEFAULT_MAX_TOKENS = 512;

const NUMBERS = {
  max_tokens: { whole: true, least: 1, most: Infinity },
  temperature: { whole: false, least: 0, most: 2 },
  top_p: { whole: false, least: 0, most: 1 },
  top_k: { whole: true, least: -1, most: Infinity },
  seed: { whole: true, least: -1, most: Number.MAX_SAFE_INTEGER },
};

export const PARAMETERS = [...Object.keys(NUMBERS), "stop"];
export const TEXTS = ["prompt", "system_prompt"];

/** Return `{input, faults}`; a field that is empty is left out, so the server's default holds. */
export function readFields(fields) {
  const input = { prompt: fields.prompt ?? "" };
  const faults = {};
  if (!input.prompt) faults.prompt = "Write a prompt first.";
  if (fields.system_prompt?.trim()) input.system_prompt = fields.system_prompt;
  for (const [name, rule] of Object.entries(NUMBERS)) {
    const text = (fields[name] ?? "").trim().replace(",", ".");
    if (text === "") continue;
    const fault = numberFault(text, rule);
    if (fault) faults[name] = fault;
    else input[name] = Number(text);
  }
  const stop = (fields.stop ?? "").split("\n").filter((line) => line !== "");
  if (stop.length > 16) faults.stop = "16 at most.";
  if (stop.length > 0) input.stop = stop;
  return { input, faults };
}

/** Return the fields that make this `input`: the reverse of `readFields` for what it knows. */
export function writeFields(input) {
  const fields = {};
  fields.prompt = input.prompt ?? lastUserTurn(input.messages) ?? "";
  fields.system_prompt = input.system_prompt ?? systemTurn(input.messages) ?? "";
  for (const name of Object.keys(NUMBERS)) {
    const value = input[name] ?? (name === "max_tokens" ? input.max_new_tokens : undefined);
    fields[name] = value === undefined || value === null ? "" : String(value);
  }
  const stop = input.stop ?? input.stop_sequences ?? [];
  fields.stop = (Array.isArray(stop) ? stop : [stop]).join("\n");
  return fields;
}

/** The fault that the server found in each field, by the name of the field here; `form` for others. */
export function serverFaults(invalidFields) {
  const faults = {};
  for (const { field = "", description = "" } of invalidFields) {
    const name = field.split(".")[1] ?? "";
    const known = TEXTS.includes(name) || PARAMETERS.includes(name);
    const at = known ? name : name === "max_new_tokens" ? "max_tokens" : "form";
    const text = at === "form" ? `${field}: ${description}` : description;
    faults[at] = faults[at] ? `${faults[at]} ${text}` : text;
  }
  return faults;
}

function numberFault(text, { whole, least, most }) {
  if (!/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text)) return "Not a number.";
  const value = Number(text);
  if (whole && !Number.isInteger(value)) return "A whole number.";
  if (value < least) return `At least ${least}.`;
  if (value > most) return most === Number.MAX_SAFE_INTEGER ? "Too large for this page." : `At most ${most}.`;
  return "";
}

function lastUserTurn(messages) {
  return messages?.findLast((message) => message.role === "user")?.content;
}

function systemTurn(messages) {
  return messages?.find((message) => message.role === "system")?.content;
}
