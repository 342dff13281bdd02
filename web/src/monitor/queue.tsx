import { count } from "../format";
import type { Status } from "../status";

const MOST_DRAWN = 32;

/** Sequences on their way: one seat for each that can run, and those who wait. */
export function Queue({ sequences, requests }: { sequences: Status["sequences"]; requests: Status["requests"] }) {
  const going = sequences?.running ?? requests?.running ?? 0;
  const waiting = sequences?.waiting ?? requests?.waiting ?? 0;
  const seats = Math.min(MOST_DRAWN, Math.max(sequences?.limit ?? 0, going));
  const facts: [string, number | undefined][] = [
    ["served", requests?.served],
    ["cancelled", requests?.cancelled],
    ["failed", requests?.failed],
  ];
  return (
    <section class="card">
      <h3>Queue</h3>
      <p class="big">
        {count(going)} <small>running</small> {count(waiting)} <small>waiting</small>
      </p>
      <div class="seats" aria-hidden="true">
        {Array.from({ length: seats }, (_, index) => (
          <i class={index < going ? "seat taken" : "seat"} />
        ))}
        {Array.from({ length: Math.min(MOST_DRAWN, waiting) }, () => (
          <i class="seat queued" />
        ))}
      </div>
      <dl class="parts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{count(value)}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}
