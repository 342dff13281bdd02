/** Server-sent events: bytes in whatever pieces they arrive, whole `data` payloads out. */

export class SseParser {
  private rest = "";
  private data: string[] = [];

  /** The payloads of the events that became complete with this text. */
  push(text: string): string[] {
    const events: string[] = [];
    this.rest += text;
    for (;;) {
      const end = this.rest.search(/[\r\n]/);
      if (end < 0) break;
      // A carriage return at the very end may be half of a CR LF.
      if (this.rest[end] === "\r" && end === this.rest.length - 1) break;
      const line = this.rest.slice(0, end);
      this.rest = this.rest.slice(end + (this.rest.startsWith("\r\n", end) ? 2 : 1));
      if (line === "") this.flush(events);
      else if (line === "data" || line.startsWith("data:")) this.data.push(line.slice(5).replace(/^ /, ""));
    }
    return events;
  }

  /** What an ending stream leaves: an event whose closing blank line never came. */
  finish(): string[] {
    const events = this.push("\n\n");
    this.rest = "";
    return events;
  }

  private flush(events: string[]): void {
    if (this.data.length > 0) events.push(this.data.join("\n"));
    this.data = [];
  }
}

/** The payloads of a response's body. Characters cut by a chunk border are put together. */
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const parser = new SseParser();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      yield* parser.push(done ? decoder.decode() : decoder.decode(value, { stream: true }));
      if (done) break;
    }
    yield* parser.finish();
  } finally {
    reader.cancel().catch(() => undefined);
  }
}
