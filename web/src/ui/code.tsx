import { highlight } from "../highlight";
import { CopyButton } from "./copy";

const LONGEST = 20_000; // characters: beyond, painting would slow an answer down while it streams in

function paint(text: string, language: string) {
  if (text.length > LONGEST) return text;
  return highlight(text, language).map(({ kind, text }) => (kind ? <span class={`code-${kind}`}>{text}</span> : text));
}

/** A block of code under a rim that names its language. */
export function CodeBlock({ text, language }: { text: string; language: string }) {
  const name = language.split(/\s/)[0] ?? "";
  return (
    <figure class="code">
      <figcaption>
        <span>{name || "text"}</span>
        <CopyButton text={text} label={`Copy ${name || "text"}`} />
      </figcaption>
      <pre tabIndex={0}>
        <code>{paint(text, name)}</code>
      </pre>
    </figure>
  );
}
