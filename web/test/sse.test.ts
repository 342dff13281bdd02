import { describe, expect, it } from "vitest";
import { readEvents, SseParser } from "../src/sse";

const STREAM = ': keep-alive\r\n\r\nevent: message\r\nid: 7\r\ndata: {"a":"ü–𝄞"}\r\n\r\ndata:one\ndata: two\n\ndata\n\rdata: [DONE]\r\r';
const EVENTS = ['{"a":"ü–𝄞"}', "one\ntwo", "", "[DONE]"];

/** A body that arrives cut into these many bytes at a time. */
function body(bytes: Uint8Array, size: number): ReadableStream<Uint8Array> {
  return new ReadableStream({
    start(controller) {
      for (let at = 0; at < bytes.length; at += size) controller.enqueue(bytes.slice(at, at + size));
      controller.close();
    },
  });
}

async function all(stream: AsyncGenerator<string>): Promise<string[]> {
  const found: string[] = [];
  for await (const data of stream) found.push(data);
  return found;
}

describe("server-sent events", () => {
  it("are the same however the bytes are cut", async () => {
    const bytes = new TextEncoder().encode(STREAM);
    for (let size = 1; size <= bytes.length; size++) {
      expect(await all(readEvents(body(bytes, size))), `${size} bytes at a time`).toEqual(EVENTS);
    }
  });

  it("come out as soon as they are complete", () => {
    const parser = new SseParser();
    expect(parser.push("data: 1\n\nda")).toEqual(["1"]);
    expect(parser.push("ta: 2\n")).toEqual([]);
    expect(parser.push("\ndata: 3\r\n\r")).toEqual(["2"]);
    expect(parser.push("\ndata: 4\r\n\r\n")).toEqual(["3", "4"]);
  });

  it("end with the stream even without a blank line", async () => {
    expect(await all(readEvents(body(new TextEncoder().encode("data: last"), 3)))).toEqual(["last"]);
  });

  it("close the body when the reader leaves", async () => {
    let cancelled = false;
    const endless = new ReadableStream<Uint8Array>({
      pull: (controller) => controller.enqueue(new TextEncoder().encode("data: x\n\n")),
      cancel: () => void (cancelled = true),
    });
    for await (const _ of readEvents(endless)) break;
    expect(cancelled).toBe(true);
  });
});
