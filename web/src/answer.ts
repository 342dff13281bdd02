/** One streamed answer of `/v1/chat/completions`, as the page needs it. */

import { ApiError, errorMessage, request } from "./api";
import type { Figures } from "./conversation";
import { readEvents } from "./sse";

export interface Reading {
  read: number;
  total: number;
  cached: number;
}

export type Part =
  | { kind: "thinking"; text: string }
  | { kind: "content"; text: string }
  | { kind: "loading" }
  | { kind: "reading"; reading: Reading }
  | { kind: "finish"; reason: string }
  | { kind: "figures"; figures: Figures };

interface Chunk {
  choices?: { delta?: { content?: string | null; reasoning_content?: string | null }; finish_reason?: string | null }[];
  prompt_progress?: { total: number; cache?: number; processed: number };
  usage?: {
    prompt_tokens?: number;
    completion_tokens?: number;
    prompt_tokens_details?: { cached_tokens?: number };
    completion_tokens_details?: { reasoning_tokens?: number };
  } | null;
  timings?: { prompt_ms?: number; predicted_ms?: number; predicted_per_second?: number; draft_n?: number; draft_n_accepted?: number };
}

/** The parts that one event holds. Throws the error that the server put into the stream. */
export function readChunk(data: string): Part[] {
  if (data === "[DONE]") return [];
  const chunk = JSON.parse(data) as Chunk;
  const failed = errorMessage(chunk);
  if (failed) throw new ApiError(500, failed);
  const parts: Part[] = [];
  const progress = chunk.prompt_progress;
  if (progress) {
    parts.push({ kind: "reading", reading: { read: progress.processed, total: progress.total, cached: progress.cache ?? 0 } });
  }
  const choice = chunk.choices?.[0];
  if (choice?.delta?.reasoning_content) parts.push({ kind: "thinking", text: choice.delta.reasoning_content });
  if (choice?.delta?.content) parts.push({ kind: "content", text: choice.delta.content });
  if (choice?.finish_reason) parts.push({ kind: "finish", reason: choice.finish_reason });
  if (chunk.usage) parts.push({ kind: "figures", figures: readFigures(chunk) });
  return parts;
}

function readFigures({ usage, timings }: Chunk): Figures {
  return {
    promptTokens: usage?.prompt_tokens,
    cachedTokens: usage?.prompt_tokens_details?.cached_tokens,
    answerTokens: usage?.completion_tokens,
    thinkingTokens: usage?.completion_tokens_details?.reasoning_tokens,
    tokensPerSecond: timings?.predicted_per_second,
    promptSeconds: timings?.prompt_ms === undefined ? undefined : timings.prompt_ms / 1000,
    drafted: timings?.draft_n,
    accepted: timings?.draft_n_accepted,
  };
}

const PATIENCE_MS = 120_000; // for a server that is loading its model

/** Streams an answer until it ends, fails or `signal` aborts it. While the model is being loaded it asks again. */
export async function* streamAnswer(body: object, signal: AbortSignal): AsyncGenerator<Part> {
  const whole = { ...body, stream: true, stream_options: { include_usage: true }, return_progress: true };
  const init = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(whole), signal };
  const end = Date.now() + PATIENCE_MS;
  let response: Response | undefined;
  while (!response) {
    try {
      response = await request("/v1/chat/completions", init);
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 503 || Date.now() > end) throw error;
      yield { kind: "loading" };
      await pause(1000 * Math.min(5, error.retryAfter ?? 1), signal);
    }
  }
  if (!response.body) throw new ApiError(500, "The answer has no body.");
  let ended = false;
  for await (const data of readEvents(response.body)) {
    if (data === "[DONE]") ended = true;
    for (const part of readChunk(data)) {
      if (part.kind === "finish") ended = true;
      yield part;
    }
  }
  if (!ended) throw new ApiError(500, "The connection ended in the middle of the answer.");
}

/** Waits, or throws when `signal` aborts. */
function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
}
