/** Markdown as elements. Text becomes text nodes and nothing else: HTML in an answer is shown, never run; no image is fetched. */

import type { Token, Tokens } from "marked";
import type { ComponentChild } from "preact";
import { memo } from "preact/compat";
import { useRef } from "preact/hooks";
import { BlockReader } from "./blocks";
import { decodeEntities } from "./entities";
import { CodeBlock } from "./ui/code";

const DEEPEST = 24; // levels of nesting that are drawn; what lies deeper is shown as it was written

/** One element for each block; a block whose source did not change is not built again while an answer grows. */
export const Markdown = memo(({ text }: { text: string }) => {
  const reader = useRef<BlockReader | null>(null);
  reader.current ??= new BlockReader();
  return (
    <div class="prose">
      {reader.current.read(text).map((token, index) => (
        <Block key={index} token={token} />
      ))}
    </div>
  );
});

const Block = memo(
  ({ token }: { token: Token }) => <>{block(token, 0)}</>,
  (before, after) => before.token === after.token || (before.token.raw === after.token.raw && before.token.type === after.token.type),
);

function block(token: Token, depth: number): ComponentChild {
  if (depth > DEEPEST) return token.raw;
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading": {
      // The page has its own first two levels.
      const Heading = `h${Math.min(6, (token as Tokens.Heading).depth + 2)}` as "h3";
      return <Heading>{inlines(token.tokens, depth)}</Heading>;
    }
    case "code":
      return <CodeBlock text={token.text} language={token.lang ?? ""} />;
    case "blockquote":
      return <blockquote>{blocks(token.tokens, depth)}</blockquote>;
    case "hr":
      return <hr />;
    case "list":
      return list(token as Tokens.List, depth);
    case "table":
      return table(token as Tokens.Table, depth);
    case "paragraph":
      return <p>{inlines(token.tokens, depth)}</p>;
    case "html":
      return <p>{token.raw}</p>;
    default:
      return inline(token, depth);
  }
}

function blocks(tokens: Token[] | undefined, depth: number): ComponentChild[] {
  return (tokens ?? []).map((token) => block(token, depth + 1));
}

function list({ ordered, start, items }: Tokens.List, depth: number): ComponentChild {
  const children = items.map((item) => <li class={item.task ? "task" : undefined}>{blocks(item.tokens, depth)}</li>);
  return ordered ? <ol start={start === "" ? 1 : start}>{children}</ol> : <ul>{children}</ul>;
}

function table({ header, rows }: Tokens.Table, depth: number): ComponentChild {
  const cell = ({ align, tokens }: Tokens.TableCell) => ({
    class: align ? `align-${align}` : undefined,
    children: inlines(tokens, depth),
  });
  return (
    <div class="table" role="region" aria-label="Table" tabIndex={0}>
      <table>
        <thead>
          <tr>{header.map((entry) => <th scope="col" {...cell(entry)} />)}</tr>
        </thead>
        <tbody>{rows.map((row) => <tr>{row.map((entry) => <td {...cell(entry)} />)}</tr>)}</tbody>
      </table>
    </div>
  );
}

function inlines(tokens: Token[] | undefined, depth: number): ComponentChild[] {
  return (tokens ?? []).map((token) => inline(token, depth + 1));
}

function inline(token: Token, depth: number): ComponentChild {
  if (depth > DEEPEST) return token.raw;
  switch (token.type) {
    case "strong":
      return <strong>{inlines(token.tokens, depth)}</strong>;
    case "em":
      return <em>{inlines(token.tokens, depth)}</em>;
    case "del":
      return <del>{inlines(token.tokens, depth)}</del>;
    case "codespan":
      return <code>{token.text}</code>;
    case "br":
      return <br />;
    case "link":
      return link(token.href, inlines(token.tokens, depth));
    case "image":
      return link(token.href, [`🖼 ${token.text || token.href}`]);
    case "checkbox":
      return <input type="checkbox" checked={token.checked} disabled aria-label={token.checked ? "done" : "to do"} />;
    case "escape":
      return token.text;
    case "text":
      return token.tokens ? inlines(token.tokens, depth) : decodeEntities(token.text);
    default:
      return token.raw;
  }
}

function link(address: string, children: ComponentChild[]): ComponentChild {
  if (!isSafeAddress(address)) return <span class="unsafe-link">{children}</span>;
  return (
    <a href={address} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}

/** Only addresses that open a page or a letter; relative ones would point into this server. */
export function isSafeAddress(address: string): boolean {
  try {
    return ["http:", "https:", "mailto:"].includes(new URL(address).protocol);
  } catch {
    return false;
  }
}
