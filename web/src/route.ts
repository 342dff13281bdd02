/** The view in the address: `#/chat/ID`, `#/monitor`, `#/connect`, `#/settings`. */

import { signal } from "@preact/signals";
import { conversations, open, openConversation, startNew } from "./store";

export const VIEWS = ["chat", "monitor", "connect", "settings"] as const;
export type View = (typeof VIEWS)[number];

export const view = signal<View>("chat");

export function go(to: View): void {
  location.hash = to === "chat" ? chatHash() : `#/${to}`;
}

export function goToConversation(id: string): void {
  location.hash = `#/chat/${id}`;
}

export function goToNew(): void {
  startNew();
  location.hash = "#/chat";
  read();
}

/** Follows the address from now on. */
export function followAddress(): void {
  addEventListener("hashchange", read);
  read();
}

/** Puts the id of a conversation that got its first message into the address, so that a reload finds it. */
export function nameConversation(id: string): void {
  if (view.value === "chat" && location.hash !== `#/chat/${id}`) history.replaceState(null, "", `#/chat/${id}`);
}

function chatHash(): string {
  return conversations.value[open.value.id] ? `#/chat/${open.value.id}` : "#/chat";
}

function read(): void {
  const [name, id] = location.hash.replace(/^#\/?/, "").split("/");
  view.value = VIEWS.find((known) => known === name) ?? "chat";
  if (view.value === "chat" && id && conversations.value[id]) openConversation(id);
}
