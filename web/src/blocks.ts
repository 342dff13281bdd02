/** Markdown as blocks, while it grows: only its last blocks are read again. */

import { Marked, type Token } from "marked";

const marked = new Marked({ gfm: true });
const OPEN = 2; // blocks at the end that more text can still change: a list and what may become part of it

export class BlockReader {
  private text = "";
  private tokens: Token[] = [];

  /** The blocks of a text; cheap when it continues the one before. */
  read(raw: string): Token[] {
    const text = raw.replace(/\r\n?/g, "\n");
    if (text === this.text) return this.tokens;
    const kept = text.startsWith(this.text) ? this.closed() : [];
    const from = kept.reduce((sum, token) => sum + token.raw.length, 0);
    this.tokens = [...kept, ...lex(text.slice(from))];
    this.text = text;
    return this.tokens;
  }

  /** The blocks before the open ones. None where the blocks don't spell the text, so that lengths would lie. */
  private closed(): Token[] {
    let end = this.tokens.length;
    for (let open = 0; open < OPEN && end > 0; end--) {
      if (this.tokens[end - 1]!.type !== "space") open += 1;
    }
    const kept = this.tokens.slice(0, end);
    return this.text.startsWith(kept.map(({ raw }) => raw).join("")) ? kept : [];
  }
}

/** Text that is nested beyond what the parser can follow stays plain. */
function lex(text: string): Token[] {
  try {
    return marked.lexer(text);
  } catch {
    return [{ type: "html", raw: text, text }];
  }
}
