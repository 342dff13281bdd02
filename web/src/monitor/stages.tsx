import { count, decimal } from "../format";
import type { Status } from "../status";
import { Bar, Legend } from "./bar";

const ORDER = ["prefill", "draft", "forward", "sample", "checkpoint"]; // each keeps its place and colour

function place(name: string): number {
  const known = ORDER.indexOf(name);
  return known < 0 ? ORDER.length : known;
}

/** Where the milliseconds of a step go. */
export function Stages({ step }: { step: Status["step"] }) {
  const names = Object.keys(step?.stages ?? {}).sort((a, b) => place(a) - place(b));
  const slices = names.map((name) => ({ name, value: step?.stages[name] ?? 0, colour: place(name) }));
  const sum = slices.reduce((total, { value }) => total + value, 0);
  return (
    <section class="card wide flat">
      <h3>A step</h3>
      <p class="big">
        {decimal(step?.ms, 2)} <small>ms · {count(step?.count)} steps so far</small>
      </p>
      <Bar slices={slices} whole={Math.max(step?.ms ?? 0, sum)} />
      <Legend slices={slices} format={(value) => `${decimal(value, 2)} ms`} />
    </section>
  );
}
