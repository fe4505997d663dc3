// A program that prints the tool calls of one resumable stream as they grow, for the tests against an
// edge (tests/conformance/typescript/test_tool_calls.py).
//
// Its argument is JSON: the edge's URL, `openai` or `anthropic`, and the request. Each line of output is
// JSON: a part, and the methods of the requests so far.

import { Anthropic, type MessageRequest } from "../src/anthropic.js";
import { type ChatRequest, OpenAI } from "../src/openai.js";

interface Given {
  readonly base: string;
  readonly api: string;
  readonly request: ChatRequest & MessageRequest;
}

const { base, api, request } = JSON.parse(process.argv[2] ?? "") as Given;
const methods: string[] = [];
const options = {
  baseUrl: base,
  reconnects: 40, // an edge may be long in starting on a busy machine
  fetch: (url: Parameters<typeof fetch>[0], init?: RequestInit): Promise<Response> => {
    methods.push(init?.method ?? "GET");
    return fetch(url, init);
  },
};
const client = api === "openai" ? new OpenAI(options) : new Anthropic(options);
for await (const part of client.stream(request, { resumable: true })) console.log(JSON.stringify({ part, methods }));
