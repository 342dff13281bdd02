/** What a reader can do with a conversation: ask, stop, edit, ask again. */

import { signal } from "@preact/signals";
import { type Reading, streamAnswer } from "./answer";
import { explain } from "./api";
import { add, type Attachment, change, type Conversation, type Message, newId, requestBody, show } from "./conversation";
import { modelId } from "./model";
import { announce } from "./announce";
import { get, open, put, remove } from "./store";

export interface Running {
  message: string;
  controller: AbortController;
  reading: Reading | "loading" | null; // null: in the queue
}

/** Answers on their way, by conversation. */
export const running = signal<Record<string, Running>>({});

const DRAW_MS = 50; // how often text that came in is drawn
const KEEP_MS = 1000; // how often it is kept

export function send(text: string, attachments: Attachment[]): void {
  const question: Message = {
    id: newId(),
    parent: open.value.leaf,
    role: "user",
    text,
    ...(attachments.length > 0 ? { attachments } : {}),
  };
  ask(add(open.value, question), question.id);
}

/** Replaces a question by a new version of it and asks that. */
export function edit(question: Message, text: string): void {
  if (running.value[open.value.id]) return;
  const version = { ...question, id: newId(), text };
  ask(add(open.value, version), version.id);
}

/** Asks the question of an answer once more. */
export function regenerate(answer: Message): void {
  if (answer.parent !== null && !running.value[open.value.id]) ask(open.value, answer.parent);
}

export function stop(id = open.value.id): void {
  running.value[id]?.controller.abort();
}

/** Deletes a conversation, and stops its answer. */
export function discard(id: string): void {
  stop(id);
  remove(id);
}

export function showVersion(id: string): void {
  if (!running.value[open.value.id]) put(show(open.value, id));
}

async function ask(conversation: Conversation, question: string): Promise<void> {
  const answer: Message = { id: newId(), parent: question, role: "assistant", text: "", ...(conversation.settings.json ? { json: true } : {}) };
  const controller = new AbortController();
  put(add(conversation, answer));
  setRunning(conversation.id, { message: answer.id, controller, reading: null });
  announce("Waiting for the answer.");

  let fields: Partial<Message> = {};
  let drawn = 0;
  let kept = Date.now();
  let timer = 0;
  const update = (keep: boolean): void => {
    clearTimeout(timer);
    timer = 0;
    drawn = Date.now();
    if (keep) kept = drawn;
    const now = get(conversation.id);
    if (now) put(change(now, answer.id, fields), keep);
  };
  const soon = (): void => {
    const now = Date.now();
    if (now - drawn >= DRAW_MS) update(now - kept >= KEEP_MS);
    else if (!timer) timer = window.setTimeout(() => update(false), DRAW_MS - (now - drawn));
  };

  let thinkingSince = 0;
  try {
    const body = requestBody(conversation, question, await modelId());
    for await (const part of streamAnswer(body, controller.signal)) {
      switch (part.kind) {
        case "loading":
          setRunning(conversation.id, { message: answer.id, controller, reading: "loading" });
          break;
        case "reading":
          setRunning(conversation.id, { message: answer.id, controller, reading: part.reading });
          break;
        case "thinking":
          thinkingSince ||= Date.now();
          fields = {
            ...fields,
            thinking: (fields.thinking ?? "") + part.text,
            thinkingSeconds: (Date.now() - thinkingSince) / 1000,
          };
          soon();
          break;
        case "content":
          fields = { ...fields, text: (fields.text ?? "") + part.text };
          soon();
          break;
        case "finish":
          fields = { ...fields, finish: part.reason };
          break;
        case "figures":
          fields = { ...fields, figures: part.figures };
      }
    }
    announce("The answer is complete.");
  } catch (error) {
    if (controller.signal.aborted) {
      fields = { ...fields, finish: "stopped" };
      announce("Stopped.");
    } else {
      fields = { ...fields, finish: "error", error: explain(error) };
      announce(`The answer failed. ${fields.error}`);
    }
  } finally {
    update(true);
    setRunning(conversation.id, undefined);
  }
}

function setRunning(id: string, value: Running | undefined): void {
  const { [id]: _, ...others } = running.value;
  running.value = value ? { ...others, [id]: value } : others;
}

/** Nothing that already came in is lost when the page goes away. */
addEventListener("pagehide", () => {
  for (const id of Object.keys(running.value)) {
    const conversation = get(id);
    if (conversation) put(conversation);
  }
});
