/** The conversations of this browser, which one is open, and keeping them. */

import { computed, signal } from "@preact/signals";
import { type Conversation, DEFAULTS, newConversation, type Settings } from "./conversation";
import { forget, load, names, save } from "./storage";

const KEY = "conversation.";

/** Kept conversations by id. */
export const conversations = signal<Record<string, Conversation>>(readAll());
/** What new conversations start with: the settings last chosen. */
export const defaults = signal<Settings>({ ...DEFAULTS, ...load<Partial<Settings>>("settings", {}) });
/** The conversation before its first message: not kept, not listed. */
const blank = signal(newConversation(defaults.value));
const openId = signal(blank.value.id);

export const open = computed(() => conversations.value[openId.value] ?? blank.value);
export const listed = computed(() => Object.values(conversations.value).sort((a, b) => b.changed - a.changed));
/** Says when this browser could not keep something. */
export const storageProblem = signal("");

function readAll(): Record<string, Conversation> {
  const found: Record<string, Conversation> = {};
  for (const name of names(KEY)) {
    const kept = load<Conversation | null>(name, null);
    if (kept?.id && kept.messages) found[kept.id] = { ...kept, settings: { ...DEFAULTS, ...kept.settings } };
  }
  return found;
}

export function get(id: string): Conversation | undefined {
  return conversations.value[id] ?? (blank.value.id === id ? blank.value : undefined);
}

/** Replaces a conversation, and keeps it unless `keep` is false (while an answer streams in). */
export function put(conversation: Conversation, keep = true): void {
  conversations.value = { ...conversations.value, [conversation.id]: conversation };
  if (!keep) return;
  storageProblem.value = save(KEY + conversation.id, conversation)
    ? ""
    : "This browser has no room for more. Export and delete old conversations, or the newest answers will be lost.";
}

export function remove(id: string): void {
  const { [id]: _, ...rest } = conversations.value;
  conversations.value = rest;
  forget(KEY + id);
  if (openId.value === id) startNew();
}

export function openConversation(id: string): void {
  openId.value = id;
}

export function startNew(): Conversation {
  blank.value = newConversation(defaults.value);
  openId.value = blank.value.id;
  return blank.value;
}

/** Changes how the open conversation is answered; later ones begin with the same. */
export function changeSettings(fields: Partial<Settings>): void {
  const settings = { ...open.value.settings, ...fields };
  if (conversations.value[open.value.id]) put({ ...open.value, settings });
  else blank.value = { ...blank.value, settings };
  defaults.value = settings;
  save("settings", settings);
}

/** Another tab of this page changed something. */
addEventListener("storage", ({ key }) => {
  if (key === null || key.includes(KEY)) conversations.value = readAll();
});
