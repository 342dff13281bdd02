import { duration } from "../format";
import { Markdown } from "../markdown";

/** Thinking lies folded above its answer. */
export function Thinking({ text, seconds, live }: { text: string; seconds: number | undefined; live: boolean }) {
  return (
    <details class="thinking">
      <summary>
        {live ? <span class="shimmer">Thinking…</span> : "Thought"}
        {seconds !== undefined && seconds >= 0.1 && ` for ${duration(seconds)}`}
      </summary>
      <Markdown text={text} />
    </details>
  );
}
