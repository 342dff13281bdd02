/** Markdown as elements. Text becomes text nodes and nothing else: HTML in an answer is shown, never run; no image is fetched. */

import { Marked, type Token, type Tokens } from "marked";
import type { ComponentChild } from "preact";
import { memo } from "preact/compat";
import { decodeEntities } from "./entities";
import { CodeBlock } from "./ui/code";

const marked = new Marked({ gfm: true });

/** One element for each block; a block whose source did not change is not built again while an answer grows. */
export function Markdown({ text }: { text: string }) {
  return (
    <div class="prose">
      {marked.lexer(text).map((token, index) => (
        <Block key={index} raw={token.raw} token={token} />
      ))}
    </div>
  );
}

const Block = memo(
  ({ token }: { raw: string; token: Token }) => <>{block(token)}</>,
  (before, after) => before.raw === after.raw && before.token.type === after.token.type,
);

function block(token: Token): ComponentChild {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading": {
      // The page has its own first two levels.
      const Heading = `h${Math.min(6, (token as Tokens.Heading).depth + 2)}` as "h3";
      return <Heading>{inlines(token.tokens)}</Heading>;
    }
    case "code":
      return <CodeBlock text={token.text} language={token.lang ?? ""} />;
    case "blockquote":
      return <blockquote>{blocks(token.tokens)}</blockquote>;
    case "hr":
      return <hr />;
    case "list":
      return list(token as Tokens.List);
    case "table":
      return table(token as Tokens.Table);
    case "paragraph":
      return <p>{inlines(token.tokens)}</p>;
    case "html":
      return <p>{token.raw}</p>;
    default:
      return inline(token);
  }
}

function blocks(tokens: Token[] | undefined): ComponentChild[] {
  return (tokens ?? []).map(block);
}

function list({ ordered, start, items }: Tokens.List): ComponentChild {
  const children = items.map((item) => <li class={item.task ? "task" : undefined}>{blocks(item.tokens)}</li>);
  return ordered ? <ol start={start === "" ? 1 : start}>{children}</ol> : <ul>{children}</ul>;
}

function table({ header, rows }: Tokens.Table): ComponentChild {
  const cell = ({ align, tokens }: Tokens.TableCell) => ({ class: align ? `align-${align}` : undefined, children: inlines(tokens) });
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

function inlines(tokens: Token[] | undefined): ComponentChild[] {
  return (tokens ?? []).map(inline);
}

function inline(token: Token): ComponentChild {
  switch (token.type) {
    case "strong":
      return <strong>{inlines(token.tokens)}</strong>;
    case "em":
      return <em>{inlines(token.tokens)}</em>;
    case "del":
      return <del>{inlines(token.tokens)}</del>;
    case "codespan":
      return <code>{token.text}</code>;
    case "br":
      return <br />;
    case "link":
      return link(token.href, inlines(token.tokens));
    case "image":
      return link(token.href, [`🖼 ${token.text || token.href}`]);
    case "checkbox":
      return <input type="checkbox" checked={token.checked} disabled aria-label={token.checked ? "done" : "to do"} />;
    case "escape":
      return token.text;
    case "text":
      return token.tokens ? inlines(token.tokens) : decodeEntities(token.text);
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
