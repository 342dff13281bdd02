/** What a screen reader is told: a few short sentences, never the stream itself. */

import { signal } from "@preact/signals";

export const announcement = signal("");

export function announce(text: string): void {
  announcement.value = text;
}
