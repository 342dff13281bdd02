/** The shape of `GET /v1/status`. Every field may be missing: the page then shows a dash. */

/** One thing that a box holds: "dense weights", "experts", "n-gram table", "kv", "prefix store" … */
export interface BoxPart {
  name: string;
  bytes: number;
}

/** One tier of memory. `bytes` is its size on this machine. */
export interface Box {
  name: "VRAM" | "RAM" | "SSD" | string;
  bytes: number;
  parts: BoxPart[];
}

export interface Status {
  // The server fills these.
  version?: string;
  uptime_seconds?: number;
  state?: "loading" | "ready" | "restarting" | "stopping" | "failed";
  restarts?: number; // how often the engine process had to come back
  model?: { id: string; name?: string; context?: number; device?: string; bytes?: number };
  requests?: { running: number; waiting: number; served: number; failed: number; cancelled: number };

  // The scheduler fills these.
  sequences?: { running: number; waiting: number; limit: number };
  speed?: { tokens_per_second: number; prompt_tokens_per_second: number; tokens_per_step: number }; // mean of the last few seconds
  step?: { count: number; ms: number; stages: Record<string, number> }; // mean ms of the last steps, by stage in order
  drafts?: { drafted: number[]; accepted: number[] }; // by place in the step, since the start
  prefix?: { entries: number; bytes: number; budget: number; hits: number; misses: number; cached_tokens?: number; prompt_tokens?: number };
  kv?: { tokens: number; bytes: number; budget?: number };
  boxes?: Box[];
  memory?: { process_bytes: number; available_bytes: number; total_bytes: number };
  totals?: { prompt_tokens: number; cached_tokens: number; generated_tokens: number };
}
