/** Requests to the server that this page came from, and its errors in words. */

import { signal } from "@preact/signals";
import { load, save } from "./storage";

export const apiKey = signal(load("key", ""));
/** True once the server has asked for a key, or refused the one given. */
export const keyWanted = signal(false);

export function setApiKey(key: string): void {
  apiKey.value = key.trim();
  keyWanted.value = false;
  save("key", apiKey.value);
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly retryAfter?: number,
  ) {
    super(message);
  }
}

/** Sends a request; a status other than 2xx becomes an ApiError with the server's own message. */
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (apiKey.value) headers.set("Authorization", `Bearer ${apiKey.value}`);
  const response = await fetch(path, { ...init, headers });
  if (response.status === 401) keyWanted.value = true;
  if (!response.ok) throw await readError(response);
  return response;
}

async function readError(response: Response): Promise<ApiError> {
  const text = await response.text().catch(() => "");
  const wait = Number(response.headers.get("Retry-After") ?? NaN);
  let message = "";
  try {
    message = errorMessage(JSON.parse(text));
  } catch {
    message = text.length < 300 ? text.trim() : "";
  }
  return new ApiError(response.status, message, Number.isFinite(wait) ? wait : undefined);
}

/** The message in an error body of the OpenAI or FastAPI form; empty when there is none. */
export function errorMessage(body: unknown): string {
  const { error, detail } = (body ?? {}) as { error?: { message?: unknown } | string; detail?: unknown };
  const message = typeof error === "object" ? error?.message : (error ?? detail);
  return typeof message === "string" ? message : "";
}

/** One sentence for a person, ending in what to do. */
export function explain(error: unknown): string {
  if (!(error instanceof ApiError)) {
    if (error instanceof TypeError) return "The server does not answer. Is it still running? Start it, then try again.";
    return error instanceof Error ? error.message : String(error);
  }
  const said = error.message ? ` It says: ${error.message}` : "";
  switch (error.status) {
    case 401:
      return "The server asks for an API key, or does not know the one given. Enter it under Settings.";
    case 413:
      return `The message is too large for the server.${said}`;
    case 429:
      return `The server's queue is full. Try again in ${error.retryAfter ?? 5} s.`;
    case 503:
      return `The server is not ready yet. Try again in ${error.retryAfter ?? 5} s.${said}`;
    default:
      if (error.status >= 500) return `The server had an error (${error.status}).${said}`;
      return error.message || `The server refused the request (${error.status}).`;
  }
}
