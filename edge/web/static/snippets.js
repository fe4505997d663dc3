// Owns code for people to copy: the same request or URL in a shell, in Python, in JavaScript. Pure.

/** One word of a POSIX shell. */
export function shellQuote(text) {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** A JSON value as a Python literal. */
export function pythonLiteral(value, indent = "") {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const [open, close, items] = Array.isArray(value)
    ? ["[", "]", value.map((item) => pythonLiteral(item, inner))]
    : ["{", "}", Object.entries(value).map(([k, v]) => `${JSON.stringify(k)}: ${pythonLiteral(v, inner)}`)];
  if (items.length === 0) return open + close;
  return `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${indent}${close}`;
}

function curl(url, { method = "GET", headers = [], body = null, hasToken = false, flags = "-s" }) {
  const lines = [`curl ${flags}${method === "POST" && body === null ? " -X POST" : ""} ${shellQuote(url)}`];
  if (hasToken) lines.push(`  -H "Authorization: Bearer $REPLICATE_API_TOKEN"`);
  lines.push(...headers.map((header) => `  -H ${shellQuote(header)}`));
  if (body !== null) lines.push(`  -d ${shellQuote(body)}`);
  return lines.join(" \\\n");
}

/** How to get, stream and cancel a prediction with curl. */
export function predictionSnippets(prediction, hasToken) {
  const { get, stream, cancel } = prediction.urls;
  return [
    { name: "Get", code: curl(get, { hasToken }) },
    { name: "Stream", code: curl(stream, { flags: "-N", headers: ["Accept: text/event-stream"] }) },
    { name: "Cancel", code: curl(cancel, { method: "POST", hasToken }) },
  ];
}

/** How to make one request with curl, Python and JavaScript. `base` is the server, without `/v1`. */
export function requestSnippets(base, model, input, hasToken) {
  const body = JSON.stringify({ input }, null, 2);
  const json = JSON.stringify(input, null, 2).replaceAll("\n", "\n  ");
  return [
    {
      name: "curl",
      code: curl(`${base}/v1/models/${model}/predictions`, {
        headers: ["Content-Type: application/json"],
        body,
        hasToken,
      }),
    },
    {
      name: "Python",
      code: [
        ...(hasToken ? ["import os", ""] : []),
        "import replicate",
        "",
        `client = replicate.Client(`,
        `    api_token=${hasToken ? 'os.environ["REPLICATE_API_TOKEN"]' : '"unused"'},`,
        `    base_url=${JSON.stringify(base)},`,
        ")",
        "for event in client.stream(",
        `    ${JSON.stringify(model)},`,
        `    input=${pythonLiteral(input, "    ")},`,
        "):",
        '    print(str(event), end="", flush=True)',
      ].join("\n"),
    },
    {
      name: "JavaScript",
      code: [
        'import Replicate from "replicate";',
        "",
        "const replicate = new Replicate({",
        `  auth: ${hasToken ? "process.env.REPLICATE_API_TOKEN" : '"unused"'},`,
        `  baseUrl: ${JSON.stringify(`${base}/v1`)},`,
        "});",
        `const stream = replicate.stream(${JSON.stringify(model)}, {`,
        `  input: ${json},`,
        "});",
        "for await (const event of stream) {",
        "  process.stdout.write(event.toString());",
        "}",
      ].join("\n"),
    },
  ];
}
