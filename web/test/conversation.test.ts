import { describe, expect, it } from "vitest";
import { add, change, type Conversation, DEFAULTS, type Message, newConversation, path, requestBody, show, versions } from "../src/conversation";
import { asMarkdown } from "../src/export";

const message = (id: string, parent: string | null, role: "user" | "assistant", text: string): Message => ({ id, parent, role, text });

/** Two questions, the second one edited and answered anew. */
function edited(): Conversation {
  let conversation = newConversation(DEFAULTS);
  conversation = add(conversation, message("q1", null, "user", "First?\nmore"));
  conversation = add(conversation, message("a1", "q1", "assistant", "One."));
  conversation = add(conversation, message("q2", "a1", "user", "Second?"));
  conversation = add(conversation, message("a2", "q2", "assistant", "Two."));
  conversation = add(conversation, message("q3", "a1", "user", "Second, better?"));
  return add(conversation, message("a3", "q3", "assistant", ""));
}

const texts = (conversation: Conversation) => path(conversation).map(({ text }) => text);

describe("a conversation", () => {
  it("is named after its first question and shows its newest branch", () => {
    const conversation = edited();
    expect(conversation.title).toBe("First?");
    expect(texts(conversation)).toEqual(["First?\nmore", "One.", "Second, better?", ""]);
  });

  it("keeps the versions of an edited question with what followed each", () => {
    const conversation = edited();
    expect(versions(conversation, conversation.messages.q3!).map(({ id }) => id)).toEqual(["q2", "q3"]);
    expect(texts(show(conversation, "q2"))).toEqual(["First?\nmore", "One.", "Second?", "Two."]);
  });

  it("never changes in place", () => {
    const before = edited();
    const after = change(before, "a3", { text: "Three." });
    expect(before.messages.a3!.text).toBe("");
    expect(after.messages.a3!.text).toBe("Three.");
    expect(change(before, "nothing", { text: "x" })).toBe(before);
  });

  it("exports what is shown, files in fences that hold", () => {
    const conversation = change(edited(), "q1", { attachments: [{ name: "a.md", text: "```\ncode\n```" }] });
    expect(asMarkdown(conversation)).toContain("File a.md:\n\n````\n```\ncode\n```\n````\n\nFirst?");
  });
});

describe("a request", () => {
  it("holds the path to the question and leaves unset things to the server", () => {
    expect(requestBody(edited(), "q3", "m")).toEqual({
      model: "m",
      messages: [
        { role: "user", content: "First?\nmore" },
        { role: "assistant", content: "One." },
        { role: "user", content: "Second, better?" },
      ],
    });
  });

  it("carries every setting", () => {
    const settings = { system: "Be brief.", temperature: 0, topP: 0.9, maxTokens: 64, seed: 0, effort: "low" as const, json: true };
    const body = requestBody({ ...edited(), settings }, "q1", "m");
    expect(body).toMatchObject({ temperature: 0, top_p: 0.9, max_tokens: 64, seed: 0, reasoning_effort: "low", response_format: { type: "json_object" } });
    expect(body).toMatchObject({ messages: [{ role: "system", content: "Be brief." }, { role: "user" }] });
  });

  it("has attached files as parts before the question", () => {
    const conversation = change(edited(), "q1", { attachments: [{ name: "a.txt", text: "AAA" }] });
    const { messages } = requestBody(conversation, "q1", "m") as { messages: { content: { text: string }[] }[] };
    expect(messages[0]!.content.map(({ text }) => text)).toEqual(["File a.txt:\n\nAAA\n\n", "First?\nmore"]);
  });
});
