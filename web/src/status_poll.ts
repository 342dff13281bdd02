/** Asks for the server's status while somebody looks, and remembers the last minutes for the charts. */

import { signal } from "@preact/signals";
import { ApiError, keyWanted, request } from "./api";
import type { Status } from "./status";

export interface Sample {
  time: number; // milliseconds since 1970
  status: Status;
}

export const HISTORY_SECONDS = 120;
const QUIET_MS = 5000; // between two questions while no monitor is open
const WATCHED_MS = 1000;

export const samples = signal<Sample[]>([]);
export const reachable = signal<"yes" | "no" | "unknown">("unknown");

let watchers = 0;
let timer = 0;

/** Polls every second until the returned function is called. */
export function watch(): () => void {
  watchers += 1;
  schedule(0);
  return () => {
    watchers -= 1;
  };
}

export function startPolling(): void {
  document.addEventListener("visibilitychange", () => schedule(0));
  schedule(0);
}

function schedule(delay: number): void {
  clearTimeout(timer);
  if (!document.hidden) timer = window.setTimeout(poll, delay);
}

async function poll(): Promise<void> {
  if (!keyWanted.value) await ask();
  schedule(watchers > 0 ? WATCHED_MS : QUIET_MS);
}

async function ask(): Promise<void> {
  try {
    const response = await request("/v1/status", { signal: AbortSignal.timeout(4000) });
    const sample = { time: Date.now(), status: (await response.json()) as Status };
    const oldest = sample.time - HISTORY_SECONDS * 1000;
    samples.value = [...samples.value.filter(({ time }) => time >= oldest), sample];
    reachable.value = "yes";
  } catch (error) {
    reachable.value = error instanceof ApiError ? "yes" : "no";
  }
}
