/** Which model the server runs. */

import { signal } from "@preact/signals";
import { request } from "./api";

export interface ModelInfo {
  id: string;
  context?: number;
}

export const model = signal<ModelInfo | null>(null);

interface ModelList {
  data?: { id: string; context_length?: number; max_model_len?: number }[];
}

/** Asks the server once it is needed. Throws what `request` throws. */
export async function loadModel(): Promise<ModelInfo> {
  const list = (await (await request("/v1/models")).json()) as ModelList;
  const first = list.data?.[0];
  const context = first?.context_length ?? first?.max_model_len;
  const found = { id: first?.id ?? "default", ...(context === undefined ? {} : { context }) };
  model.value = found;
  return found;
}

export async function modelId(): Promise<string> {
  return (model.value ?? (await loadModel())).id;
}
