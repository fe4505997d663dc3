// The package's public names, but for the hook, which has an entry of its own.

export { Anthropic, type MessageRequest } from "./anthropic.js";
export type { StreamOptions } from "./attached.js";
export type { EndpointOptions, RequestOptions } from "./endpoint.js";
export { type Failure, RequestError } from "./failure.js";
export type { FollowOptions } from "./follow.js";
export { type ChatRequest, OpenAI } from "./openai.js";
export * from "./parts.js";
export { type Prediction, type PredictionRequest, Replicate } from "./replicate.js";
export { Run, type Streaming } from "./run.js";
export { EventTooLarge, MAX_EVENT_LENGTH, readEvents, type SseEvent, SseReader, StreamSilent } from "./sse.js";
export type { ToolCall } from "./tool_calls.js";
