import { describe, expect, it } from "vitest";
import { highlight } from "../src/highlight";

const kinds = (text: string, language: string) =>
  highlight(text, language)
    .filter(({ kind }) => kind)
    .map(({ kind, text }) => `${kind} ${text}`);

describe("painted code", () => {
  it.each([
    ["python", 'def f(x):  # a "comment"\n    return "# no" + f"{x}" * 0x1F'],
    ["js", "const a = `x\n${y}`; // 'z\n/* open"],
    ["json", '{"a": [1.5e3, true, null], "b": "\\""}'],
    ["nothing", "let x = 'unclosed"],
    ["rust", "fn f<'a>(x: &'a str) -> char { '\\'' }"],
  ])("in %s joins to the same text", (language, text) => {
    expect(highlight(text, language).map((piece) => piece.text).join("")).toBe(text);
  });

  it("tells comments from strings", () => {
    expect(kinds('x = "# no"  # yes', "python")).toEqual(['string "# no"', "comment # yes"]);
    expect(kinds('a("//") // b', "ts")).toEqual(['string "//"', "comment // b"]);
    expect(kinds("SELECT name -- all\nFROM t", "sql")).toEqual(["word SELECT", "comment -- all", "word FROM"]);
  });

  it("paints words and numbers only as a whole", () => {
    expect(kinds("format = for1 + 12ab + 12", "python")).toEqual(["number 12"]);
  });

  it("leaves languages alone that it does not know", () => {
    expect(highlight("if 1", "brainfuck")).toEqual([{ kind: null, text: "if 1" }]);
  });
});
