/** A conversation is a tree of messages; what is shown is the path to its leaf. All functions return new values. */

export interface Attachment {
  name: string;
  text: string;
}

/** What one answer took. Counts are tokens. */
export interface Figures {
  promptTokens?: number | undefined;
  cachedTokens?: number | undefined;
  answerTokens?: number | undefined;
  thinkingTokens?: number | undefined;
  tokensPerSecond?: number | undefined;
  promptSeconds?: number | undefined;
  drafted?: number | undefined;
  accepted?: number | undefined;
}

export interface Message {
  id: string;
  parent: string | null;
  role: "user" | "assistant";
  text: string;
  json?: boolean; // an answer that was asked for as JSON
  attachments?: Attachment[];
  thinking?: string;
  thinkingSeconds?: number;
  finish?: string; // "stop", "length", "stopped" by the reader, "error"
  error?: string;
  figures?: Figures;
}

export type Effort = "default" | "none" | "low" | "medium" | "high";

/** How answers are asked for. null leaves the choice to the server. */
export interface Settings {
  system: string;
  temperature: number | null;
  topP: number | null;
  maxTokens: number | null;
  seed: number | null;
  effort: Effort;
  json: boolean;
}

export const DEFAULTS: Settings = {
  system: "",
  temperature: null,
  topP: null,
  maxTokens: null,
  seed: null,
  effort: "default",
  json: false,
};

export interface Conversation {
  id: string;
  title: string;
  changed: number; // milliseconds since 1970
  messages: Record<string, Message>;
  leaf: string | null;
  settings: Settings;
}

export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation(settings: Settings): Conversation {
  return { id: newId(), title: "", changed: Date.now(), messages: {}, leaf: null, settings };
}

/** The messages from the first to `end`. */
export function path(conversation: Conversation, end: string | null = conversation.leaf): Message[] {
  const messages: Message[] = [];
  for (let id = end; id !== null; ) {
    const message: Message | undefined = conversation.messages[id];
    if (!message) break;
    messages.unshift(message);
    id = message.parent;
  }
  return messages;
}

/** Adds a message below its parent and shows it. The first question names the conversation. */
export function add(conversation: Conversation, message: Message): Conversation {
  const title = conversation.title || message.text.trim().split("\n")[0]?.slice(0, 60) || message.attachments?.[0]?.name || "";
  return {
    ...conversation,
    title,
    changed: Date.now(),
    messages: { ...conversation.messages, [message.id]: message },
    leaf: message.id,
  };
}

export function change(conversation: Conversation, id: string, fields: Partial<Message>): Conversation {
  const message = conversation.messages[id];
  if (!message) return conversation;
  return { ...conversation, messages: { ...conversation.messages, [id]: { ...message, ...fields } } };
}

/** The versions of a message: those with its parent and role, oldest first. */
export function versions(conversation: Conversation, message: Message): Message[] {
  return Object.values(conversation.messages).filter(
    (other) => other.parent === message.parent && other.role === message.role,
  );
}

/** Shows another version, and below it the newest of what followed. */
export function show(conversation: Conversation, id: string): Conversation {
  let leaf = id;
  for (;;) {
    const next = Object.values(conversation.messages).findLast((message) => message.parent === leaf);
    if (!next) return { ...conversation, leaf };
    leaf = next.id;
  }
}

/** The body of the request for an answer to the message `question`. */
export function requestBody(conversation: Conversation, question: string, model: string): object {
  const { system, temperature, topP, maxTokens, seed, effort, json } = conversation.settings;
  const said = path(conversation, question).filter((message) => message.role === "user" || message.text);
  const messages = said.map(({ role, text, attachments = [] }) => ({
    role,
    content: attachments.length === 0 ? text : [...attachments.map(asPart), { type: "text", text }],
  }));
  return {
    model,
    messages: system.trim() ? [{ role: "system", content: system }, ...messages] : messages,
    ...(temperature === null ? {} : { temperature }),
    ...(topP === null ? {} : { top_p: topP }),
    ...(maxTokens === null ? {} : { max_tokens: maxTokens }),
    ...(seed === null ? {} : { seed }),
    ...(effort === "default" ? {} : { reasoning_effort: effort }),
    ...(json ? { response_format: { type: "json_object" } } : {}),
  };
}

function asPart({ name, text }: Attachment): object {
  return { type: "text", text: `File ${name}:\n\n${text}\n\n` };
}
