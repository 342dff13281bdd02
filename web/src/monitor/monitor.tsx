import { useEffect } from "preact/hooks";
import { count, decimal, duration, percent } from "../format";
import type { Status } from "../status";
import { HISTORY_SECONDS, reachable, samples, watch } from "../status_poll";
import { Boxes } from "./boxes";
import { Drafts } from "./drafts";
import { LineChart } from "./line_chart";
import { Memory } from "./memory";
import { Prefix } from "./prefix";
import { Queue } from "./queue";
import { Stages } from "./stages";

/** What the server is doing, once a second while it is looked at. */
export function Monitor() {
  useEffect(watch, []);
  const history = samples.value;
  const status = history.at(-1)?.status;
  if (!status) {
    return (
      <div class="page monitor">
        <h2>Monitor</h2>
        <p class="lead">{reachable.value === "no" ? "The server does not answer." : "Waiting for the first figures…"}</p>
      </div>
    );
  }
  const series = (name: string, of: (status: Status) => number | undefined) => ({
    name,
    points: history.map(({ time, status }) => ({ time, value: of(status) ?? 0 })),
  });
  return (
    <div class="page monitor">
      <h2>Monitor</h2>
      {reachable.value === "no" && (
        <p class="problem" role="alert">
          The server does not answer; these are its last figures.
        </p>
      )}
      <Figures status={status} />
      <div class="grid">
        <section class="card wide">
          <h3>Tokens per second</h3>
          <LineChart
            seconds={HISTORY_SECONDS}
            series={[
              series("Answers", ({ speed }) => speed?.tokens_per_second),
              series("Prompts", ({ speed }) => speed?.prompt_tokens_per_second),
            ]}
          />
        </section>
        <Boxes boxes={status.boxes ?? []} />
        <Stages step={status.step} />
        <Drafts drafts={status.drafts} />
        <Queue sequences={status.sequences} requests={status.requests} />
        <Prefix prefix={status.prefix} />
        <Memory memory={status.memory} kv={status.kv} />
      </div>
    </div>
  );
}

function Figures({ status }: { status: Status }) {
  const { speed, step, prefix, totals, uptime_seconds, restarts } = status;
  const figures: [string, string, string][] = [
    [decimal(speed?.tokens_per_second), "tok/s", "now"],
    [decimal(step?.ms, 2), "ms", "per step"],
    [decimal(speed?.tokens_per_step || undefined, 2), "tokens", "per step"],
    [percent(prefix?.hits, prefix && prefix.hits + prefix.misses), "", "prefix hits"],
    [count(totals?.generated_tokens), "tokens", "written"],
    [duration(uptime_seconds), "", restarts ? `up, ${restarts} restarts` : "up"],
  ];
  return (
    <dl class="figures-row">
      {figures.map(([value, unit, name]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>
            {value} <small>{unit}</small>
          </dd>
        </div>
      ))}
    </dl>
  );
}
