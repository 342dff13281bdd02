/** Keyboard shortcuts. They use the place of a key, since Alt with a letter types other characters on some systems. */

import { signal } from "@preact/signals";
import { stop } from "./actions";
import { go, goToConversation, goToNew, VIEWS } from "./route";
import { listed, open } from "./store";

export const SHORTCUTS: readonly (readonly [string, string])[] = [
  ["Enter", "Send the message"],
  ["Shift + Enter", "New line"],
  ["Escape", "Stop the answer, or close what is open"],
  ["/", "To the message box"],
  ["Alt + N", "New conversation"],
  ["Alt + ↑ ↓", "Previous or next conversation"],
  ["Alt + 1 … 4", "Chat, monitor, connect, settings"],
  ["?", "This list"],
];

export const helpOpen = signal(false);

export function listenForShortcuts(): void {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || event.ctrlKey || event.metaKey) return;
    if (document.querySelector("dialog[open]")) return;
    if (handle(event)) event.preventDefault();
  });
}

export function focusComposer(): void {
  document.getElementById("composer")?.focus();
}

function handle(event: KeyboardEvent): boolean {
  if (event.altKey) return handleAlt(event.code);
  if (event.key === "Escape") {
    stop();
    return false;
  }
  if (event.target instanceof HTMLElement && event.target.matches("input, textarea, select, [contenteditable]")) return false;
  if (event.key === "/") {
    go("chat");
    setTimeout(focusComposer);
    return true;
  }
  if (event.key === "?") {
    helpOpen.value = true;
    return true;
  }
  return false;
}

function handleAlt(code: string): boolean {
  const view = VIEWS[Number(/^Digit(\d)$/.exec(code)?.[1] ?? 0) - 1];
  if (view) go(view);
  else if (code === "KeyN") {
    goToNew();
    setTimeout(focusComposer);
  } else if (code === "ArrowUp" || code === "ArrowDown") step(code === "ArrowUp" ? -1 : 1);
  else return false;
  return true;
}

function step(by: number): void {
  const list = listed.value;
  const next = list[Math.max(0, list.findIndex(({ id }) => id === open.value.id) + by)];
  if (next) goToConversation(next.id);
}
