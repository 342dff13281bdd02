import type { Reading } from "../answer";
import { count } from "../format";

/** Until the first token: in the queue, then how much of the prompt is read. */
export function Progress({ reading }: { reading: Reading | "loading" | null }) {
  if (reading === "loading") return <p class="waiting shimmer">The model is being loaded…</p>;
  if (!reading) return <p class="waiting shimmer">Waiting…</p>;
  const { read, total, cached } = reading;
  return (
    <div class="reading">
      <progress max={total} value={read} aria-label="Reading the prompt" />
      <p>
        Reading {count(read)} of {count(total)} tokens{cached > 0 && `, ${count(cached)} remembered`}
      </p>
    </div>
  );
}
