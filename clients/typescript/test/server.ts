// An HTTP server in this process that answers what a test tells it, and cuts connections when told.

import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

/** What came. */
export interface Asked {
  readonly method: string;
  readonly path: string;
  readonly headers: IncomingMessage["headers"];
  readonly body: string;
}

/** How to answer. */
export type Answer = (response: ServerResponse, asked: Asked) => void | Promise<void>;

/** A running server. */
export class TestServer {
  readonly asked: Asked[] = [];
  /** Connections of answers that the client closed before they ended. */
  closedEarly = 0;
  readonly #answers = new Map<string, Answer[]>();
  readonly #waiting = new Set<() => void>();
  readonly #server = createServer((request, response) => void this.#serve(request, response));

  /** Answer the next requests of this method and path so, the last one for good. */
  on(request: string, ...answers: readonly Answer[]): this {
    this.#answers.set(request, [...answers]);
    return this;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** The methods and paths that came. */
  get calls(): string[] {
    return this.asked.map(({ method, path }) => `${method} ${path}`);
  }

  /** Return once `condition` holds; it is looked at whenever something happens here. */
  async until(condition: () => boolean): Promise<void> {
    while (!condition()) await new Promise<void>((resolve) => this.#waiting.add(resolve));
  }

  async start(): Promise<this> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    return this;
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const asked = {
      method: request.method ?? "",
      path: request.url ?? "",
      headers: request.headers,
      body: Buffer.concat(chunks).toString(),
    };
    this.asked.push(asked);
    response.on("close", () => {
      if (!response.writableFinished) this.closedEarly += 1;
      this.#notify();
    });
    const answers = this.#answers.get(`${asked.method} ${asked.path}`) ?? [];
    const answer = answers.length > 1 ? answers.shift() : answers[0];
    this.#notify();
    if (answer === undefined) response.writeHead(404).end();
    else await answer(response, asked);
  }

  #notify(): void {
    for (const resolve of [...this.#waiting]) resolve();
    this.#waiting.clear();
  }
}

/** An answer of JSON. */
export function json(status: number, body: unknown, headers: Record<string, string> = {}): Answer {
  return (response) => {
    response.writeHead(status, { "Content-Type": "application/json", ...headers }).end(JSON.stringify(body));
  };
}

/** A stream that ends. */
export function sse(text: string | readonly Uint8Array[], headers: Record<string, string> = {}): Answer {
  return async (response) => {
    response.writeHead(200, { "Content-Type": "text/event-stream", ...headers });
    for (const chunk of typeof text === "string" ? [text] : text) await written(response, chunk);
    response.end();
  };
}

/** A stream whose connection is cut after its text. */
export function cutAfter(text: string, headers: Record<string, string> = {}): Answer {
  return async (response) => {
    response.writeHead(200, { "Content-Type": "text/event-stream", ...headers });
    await written(response, text === "" ? ":\n" : text);
    response.socket?.resetAndDestroy();
  };
}

/** A stream that stays open after its text. */
export function open(text: string, headers: Record<string, string> = {}): Answer {
  return async (response) => {
    response.writeHead(200, { "Content-Type": "text/event-stream", ...headers });
    await written(response, text === "" ? ":\n" : text);
  };
}

/** A connection that is closed without an answer. */
export const hangUp: Answer = (response) => {
  response.socket?.destroy();
};

function written(response: ServerResponse, chunk: string | Uint8Array): Promise<void> {
  return new Promise((resolve) => response.write(chunk, () => resolve()));
}
