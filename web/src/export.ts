import { download } from "./clipboard";
import { type Conversation, path } from "./conversation";

/** Saves what is shown of a conversation as Markdown. */
export function exportConversation(conversation: Conversation): void {
  const name = conversation.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "conversation";
  download(`${name}.md`, asMarkdown(conversation));
}

/** Saves all of them as one file. */
export function exportAll(conversations: Conversation[]): void {
  download("conversations.md", conversations.map(asMarkdown).join("\n---\n\n"));
}

export function asMarkdown(conversation: Conversation): string {
  const system = conversation.settings.system.trim();
  const parts = [`# ${conversation.title}`];
  if (system) parts.push(`## System\n\n${system}`);
  for (const message of path(conversation)) {
    parts.push(message.role === "user" ? "## You" : "## Jubako");
    for (const { name, text } of message.attachments ?? []) parts.push(`File ${name}:\n\n${fenced(text)}`);
    if (message.thinking) parts.push(`<details><summary>Thinking</summary>\n\n${message.thinking.trim()}\n\n</details>`);
    parts.push(message.text.trim());
  }
  return `${parts.filter(Boolean).join("\n\n")}\n`;
}

/** A fence longer than any in the text. */
function fenced(text: string): string {
  const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), ([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text}\n${fence}`;
}
