import { describe, expect, it } from "vitest";
import { readChunk } from "../src/answer";
import { ApiError, explain } from "../src/api";
import { decodeText } from "../src/attachments";
import { snippets } from "../src/connect/snippets";
import { ceiling, shares } from "../src/monitor/scale";

const chunk = (body: object) => readChunk(JSON.stringify(body));

describe("a chunk of an answer", () => {
  it("gives thinking, content and the end", () => {
    expect(chunk({ choices: [{ delta: { reasoning_content: "hm" } }] })).toEqual([{ kind: "thinking", text: "hm" }]);
    expect(chunk({ choices: [{ delta: { role: "assistant", content: "" } }] })).toEqual([]);
    expect(chunk({ choices: [{ delta: { content: "x" }, finish_reason: "length" }] })).toEqual([
      { kind: "content", text: "x" },
      { kind: "finish", reason: "length" },
    ]);
    expect(readChunk("[DONE]")).toEqual([]);
  });

  it("gives how far the prompt is read", () => {
    expect(chunk({ choices: [], prompt_progress: { total: 10, cache: 4, processed: 6, time_ms: 1 } })).toEqual([
      { kind: "reading", reading: { read: 6, total: 10, cached: 4 } },
    ]);
  });

  it("gives figures", () => {
    const [part] = chunk({
      choices: [],
      usage: { prompt_tokens: 10, completion_tokens: 5, prompt_tokens_details: { cached_tokens: 4 } },
      timings: { predicted_per_second: 50, prompt_ms: 1500, draft_n: 8, draft_n_accepted: 6 },
    });
    expect(part).toMatchObject({
      figures: { promptTokens: 10, answerTokens: 5, cachedTokens: 4, tokensPerSecond: 50, promptSeconds: 1.5, drafted: 8, accepted: 6 },
    });
  });

  it("throws the server's error", () => {
    expect(() => chunk({ error: { message: "the engine stopped", type: "server_error" } })).toThrow("the engine stopped");
  });
});

describe("errors", () => {
  it.each([
    [new TypeError("Failed to fetch"), "does not answer"],
    [new ApiError(401, "bad key"), "API key"],
    [new ApiError(429, "", 7), "in 7 s"],
    [new ApiError(503, "loading"), "not ready"],
    [new ApiError(400, "temperature is 9; it must lie between 0 and 2"), "temperature is 9"],
    [new ApiError(500, "boom"), "It says: boom"],
  ])("%s is said in words", (error, words) => {
    expect(explain(error)).toContain(words);
  });
});

describe("a file", () => {
  const bytes = (...values: number[]) => new Uint8Array(values);

  it("is text in UTF-8 or marked UTF-16", () => {
    expect(decodeText("a", new TextEncoder().encode("ü\n"))).toBe("ü\n");
    expect(decodeText("a", bytes(0xff, 0xfe, 0x41, 0))).toBe("A");
  });

  it.each([
    ["a cut character", bytes(0x41, 0xc3)],
    ["a picture", bytes(0x89, 0x50, 0x4e, 0x47)],
    ["a zero byte", bytes(0x41, 0, 0x42)],
  ])("with %s is refused by name", (_, data) => {
    expect(() => decodeText("x.bin", data)).toThrow("x.bin is not a text file");
  });
});

describe("snippets", () => {
  it("carry address, model and key", () => {
    for (const { title, text } of snippets({ origin: "http://box:9000", model: "m1", key: "sk-1" })) {
      if (title !== "From another machine") expect(text, title).toMatch(/http:\/\/box:9000/);
    }
    expect(snippets({ origin: "http://box:9000", model: "m1", key: "sk-1" })[0]!.text).toContain("Bearer sk-1");
    expect(snippets({ origin: "http://box:9000", model: "m1", key: "" })[0]!.text).not.toContain("Bearer");
  });
});

describe("scales", () => {
  it("end at round numbers", () => {
    expect([0, 0.3, 1.2, 42, 200, 999].map(ceiling)).toEqual([1, 1, 2, 50, 200, 1000]);
  });

  it("show thin parts and never exceed the whole", () => {
    expect(shares([1, 999], 1000, 1)).toEqual([(100 * 1) / 100.9, (100 * 99.9) / 100.9]);
    expect(shares([25, 0], 100, 1)).toEqual([25, 0]);
    expect(shares([5], 0)).toEqual([0]);
  });
});
