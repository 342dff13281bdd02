import { bytes, count, percent } from "../format";
import type { Status } from "../status";
import { Bar } from "./bar";

/** Prompts that began like an earlier one, and so were not read again. */
export function Prefix({ prefix }: { prefix: Status["prefix"] }) {
  const facts: [string, string][] = [
    ["hits", count(prefix?.hits)],
    ["misses", count(prefix?.misses)],
    ["saved states", count(prefix?.entries)],
    ["room used", prefix ? `${bytes(prefix.bytes)} of ${bytes(prefix.budget)}` : "–"],
  ];
  if (prefix?.prompt_tokens) facts.push(["prompt tokens remembered", percent(prefix.cached_tokens, prefix.prompt_tokens)]);
  return (
    <section class="card">
      <h3>Prefix cache</h3>
      <p class="big">
        {percent(prefix?.hits, prefix && prefix.hits + prefix.misses)} <small>hits</small>
      </p>
      <Bar slices={[{ name: "used", value: prefix?.bytes ?? 0 }]} whole={prefix?.budget ?? 0} />
      <dl class="parts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}
