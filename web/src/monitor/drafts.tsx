import { count, percent } from "../format";
import type { Status } from "../status";

const ROOMY = 5; // places that have room for their counts beside each other

/** How often the drafted token at each place of a step was right. */
export function Drafts({ drafts }: { drafts: Status["drafts"] }) {
  const drafted = drafts?.drafted ?? [];
  const accepted = drafts?.accepted ?? [];
  return (
    <section class="card">
      <h3>Drafts accepted</h3>
      {drafted.length === 0 && <p class="hint">None drafted so far.</p>}
      <ol class={drafted.length > ROOMY ? "columns dense" : "columns"}>
        {drafted.map((tried, index) => {
          const right = accepted[index] ?? 0;
          const share = tried > 0 ? right / tried : 0;
          return (
            <li key={index}>
              <b>{percent(right, tried)}</b>
              <svg viewBox="0 0 10 100" preserveAspectRatio="none" aria-hidden="true">
                <rect class="free" width="10" height="100" />
                <rect class="fill s0" y={100 - 100 * share} width="10" height={100 * share} />
              </svg>
              <span>{`${index + 1}.`}</span>
              <small>{`${count(right)} of ${count(tried)}`}</small>
            </li>
          );
        })}
      </ol>
    </section>
  );
}
