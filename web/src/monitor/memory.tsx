import { bytes, count } from "../format";
import type { Status } from "../status";
import { Bar, Legend } from "./bar";

/** Main memory of the whole machine, and what sequences take of it. */
export function Memory({ memory, kv }: { memory: Status["memory"]; kv: Status["kv"] }) {
  const others = memory ? memory.total_bytes - memory.available_bytes - memory.process_bytes : 0;
  const slices = memory
    ? [
        { name: "engine", value: memory.process_bytes },
        { name: "other programs", value: Math.max(0, others) },
      ]
    : [];
  return (
    <section class="card">
      <h3>Memory</h3>
      <p class="big">
        {bytes(memory?.available_bytes)} <small>free of {bytes(memory?.total_bytes)}</small>
      </p>
      <Bar slices={slices} whole={memory?.total_bytes ?? 0} />
      <Legend slices={slices} format={bytes} />
      <dl class="parts">
        <div>
          <dt>sequences hold</dt>
          <dd>{`${count(kv?.tokens)} tokens, ${bytes(kv?.bytes)}`}</dd>
        </div>
      </dl>
    </section>
  );
}
