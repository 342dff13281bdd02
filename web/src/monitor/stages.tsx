import { count, decimal } from "../format";
import type { Status } from "../status";
import { Bar, Legend } from "./bar";

/** Where the milliseconds of a step go. */
export function Stages({ step }: { step: Status["step"] }) {
  const slices = Object.entries(step?.stages ?? {}).map(([name, value]) => ({ name, value }));
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
