// A stand-in for `jubako serve`, to work on the page without a model: `npm run build && node dev/server.mjs`.
// It serves the built page under the real policy and answers with a text that shows every kind of element.
import { createReadStream, existsSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const PAGE = new URL("../../src/jubako/serve/page/", import.meta.url).pathname;
const PORT = Number(process.argv[2] ?? 8080);
const KEY = process.argv[3]; // asks for this key when given
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".txt": "text/plain" };
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; manifest-src 'self'; " +
  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const ANSWER = `A *jubako* is a **stack of boxes**. <b>This is no HTML</b>, and \`code\` stays code.

1. The first box is eaten first.
2. The second one keeps.
   - with a nested point
   - and [a link](https://example.org) or [a bad one](javascript:alert(1))

| box | holds | bytes |
|:----|:------|------:|
| VRAM | experts | 1.04 GB |
| RAM | the rest | 4.81 GB |

\`\`\`python
def merge(left: list[int], right: list[int]) -> list[int]:
    """Two sorted lists, one sorted list: the line is long enough to have to scroll sideways on a phone."""
    return sorted(left + right)
\`\`\`

> Lacquer is patient.
`;

const started = Date.now();
let written = 0;
let speed = 0;

const json = (response, status, body) => {
  response.writeHead(status, { "Content-Type": "application/json" });
  response.end(JSON.stringify(body));
};

function status() {
  const wave = Math.sin(Date.now() / 4000);
  const now = speed ? speed + 12 * wave : 0;
  return {
    version: "0.1.0",
    uptime_seconds: (Date.now() - started) / 1000,
    state: "ready",
    restarts: 0,
    model: { id: "jubako-small", context: 262144, device: "cpu", bytes: 4e7 },
    requests: { running: speed ? 1 : 0, waiting: speed ? 2 : 0, served: 12, failed: 0, cancelled: 1 },
    sequences: { running: speed ? 1 : 0, waiting: speed ? 2 : 0, limit: 8 },
    speed: { tokens_per_second: now, prompt_tokens_per_second: speed ? 200 + 150 * wave : 0, tokens_per_step: 2.31 },
    step: { count: 4211, ms: 2.5, stages: { draft: 0.31, forward: 1.9, sample: 0.12, "keep states": 0.06 } },
    drafts: { drafted: [4000, 3900, 3700, 300, 200, 150, 90, 40, 20, 10, 9, 8, 7, 6], accepted: [3200, 2300, 1400, 100, 80, 40, 20, 9, 7, 5, 4, 3, 2, 1] },
    prefix: { entries: 14, bytes: 3.2e8, budget: 1e9, hits: 31, misses: 9, cached_tokens: 61000, prompt_tokens: 80000 },
    kv: { tokens: 5120, bytes: 6.6e7 },
    boxes: [
      { name: "VRAM", bytes: 24e9, parts: [{ name: "dense weights", bytes: 4.8e9 }, { name: "experts", bytes: 14.2e9 }, { name: "kv", bytes: 1.1e9 }] },
      { name: "RAM", bytes: 64e9, parts: [{ name: "experts", bytes: 37e9 }, { name: "prefix store", bytes: 3.2e9 }] },
      { name: "SSD", bytes: 1e12, parts: [{ name: "n-gram table", bytes: 28.8e9 }, { name: "sessions", bytes: 1.2e9 }] },
    ],
    memory: { process_bytes: 41e9, available_bytes: 14e9, total_bytes: 64e9 },
    totals: { prompt_tokens: 80000, cached_tokens: 61000, generated_tokens: 21400 + written },
  };
}

async function chat(request, response) {
  let body = "";
  for await (const piece of request) body += piece;
  const { messages } = JSON.parse(body);
  const last = JSON.stringify(messages.at(-1).content);
  if (last.includes("error")) return json(response, 500, { error: { message: "the engine stopped" } });
  response.writeHead(200, { "Content-Type": "text/event-stream" });
  const say = (event) => response.write(`data: ${JSON.stringify(event)}\n\n`);
  const delta = (fields) => say({ choices: [{ index: 0, delta: fields }] });
  speed = 60;
  for (let read = 500; read <= 4000 && !response.destroyed; read += 500) {
    say({ choices: [], prompt_progress: { total: 4000, cache: 500, processed: read } });
    await sleep(80);
  }
  for (const word of "Let me think about boxes. They stack, and what lies on top is eaten first.".match(/\S+\s*/g)) {
    if (response.destroyed) break;
    delta({ reasoning_content: word });
    await sleep(40);
  }
  for (const word of ANSWER.match(/\s*\S+\s*/g)) {
    if (response.destroyed) break;
    delta({ content: word });
    written += 1;
    await sleep(25);
  }
  speed = 0;
  say({ choices: [{ index: 0, delta: {}, finish_reason: "stop" }] });
  say({
    choices: [],
    usage: { prompt_tokens: 4000, completion_tokens: 161, prompt_tokens_details: { cached_tokens: 500 }, completion_tokens_details: { reasoning_tokens: 16 } },
    timings: { predicted_per_second: 61.3, prompt_ms: 640, draft_n: 140, draft_n_accepted: 96 },
  });
  response.end("data: [DONE]\n\n");
}

createServer((request, response) => {
  const path = new URL(request.url, "http://localhost").pathname;
  if (path.startsWith("/v1/")) {
    if (KEY && request.headers.authorization !== `Bearer ${KEY}`) return json(response, 401, { error: { message: "invalid key" } });
    if (path === "/v1/models") return json(response, 200, { data: [{ id: "jubako-small", context_length: 262144 }] });
    if (path === "/v1/status") return json(response, 200, status());
    if (path === "/v1/chat/completions") return chat(request, response);
  }
  const file = join(PAGE, normalize(path === "/" ? "/index.html" : path));
  if (!existsSync(file)) return json(response, 404, { error: { message: "not found" } });
  response.writeHead(200, { "Content-Type": TYPES[extname(file)], "Content-Security-Policy": POLICY });
  return createReadStream(file).pipe(response);
}).listen(PORT, "127.0.0.1", () => console.log(`http://127.0.0.1:${PORT}`));
