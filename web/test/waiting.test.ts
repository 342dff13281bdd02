import { afterEach, describe, expect, it, vi } from "vitest";
import { type Part, streamAnswer } from "../src/answer";

afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

const loading = () => new Response('{"error": {"message": "loading"}}', { status: 503, headers: { "Retry-After": "1" } });
const answer = () => new Response('data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n');

async function parts(signal = new AbortController().signal): Promise<Part["kind"][]> {
  const kinds: Part["kind"][] = [];
  for await (const part of streamAnswer({}, signal)) kinds.push(part.kind);
  return kinds;
}

describe("a server that loads its model", () => {
  it("is asked again until it answers", async () => {
    vi.useFakeTimers();
    const replies = [loading(), loading(), answer()];
    vi.stubGlobal("fetch", () => Promise.resolve(replies.shift()));
    const kinds = parts();
    await vi.runAllTimersAsync();
    expect(await kinds).toEqual(["loading", "loading", "content", "finish"]);
  });

  it("is left alone once the reader stops", async () => {
    const fetched = vi.fn(() => Promise.resolve(loading()));
    vi.stubGlobal("fetch", fetched);
    const controller = new AbortController();
    const kinds = parts(controller.signal);
    setTimeout(() => controller.abort(), 20);
    await expect(kinds).rejects.toThrow("aborted");
    expect(fetched).toHaveBeenCalledTimes(1);
  });

  it("fails when the answer breaks off", async () => {
    vi.stubGlobal("fetch", () => Promise.resolve(new Response('data: {"choices":[{"delta":{"content":"x"}}]}\n\n')));
    await expect(parts()).rejects.toThrow("middle of the answer");
  });
});
