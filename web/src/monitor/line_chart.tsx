import { decimal } from "../format";
import { ceiling, linePath } from "./scale";

export interface Series {
  name: string;
  points: { time: number; value: number }[];
}

const WIDTH = 600;
const HEIGHT = 150;

/** Lines over the last `seconds`, all on one scale; the newest values stand beside their names. */
export function LineChart({ series, seconds }: { series: Series[]; seconds: number }) {
  const now = Math.max(0, ...series.map(({ points }) => points.at(-1)?.time ?? 0));
  const top = ceiling(Math.max(0, ...series.flatMap(({ points }) => points.map(({ value }) => value))));
  const x = (time: number) => WIDTH * (1 - (now - time) / (1000 * seconds));
  const y = (value: number) => HEIGHT * (1 - value / top);
  const said = series.map(({ name, points }) => `${name} ${decimal(points.at(-1)?.value)}, highest ${decimal(Math.max(0, ...points.map(({ value }) => value)))}`);
  return (
    <figure class="chart">
      <figcaption class="legend">
        {series.map(({ name, points }, index) => (
          <span>
            <i class={`swatch s${index}`} />
            {name} <b>{decimal(points.at(-1)?.value)}</b>
          </span>
        ))}
      </figcaption>
      <div class="plot">
        <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`The last ${seconds} seconds. ${said.join(". ")}.`}>
          <path class="gridline" d={[0, 0.5, 1].map((part) => `M0 ${HEIGHT * part}H${WIDTH}`).join("")} />
          {series.map(({ points }, index) => {
            const line = linePath(points.map(({ time, value }) => [x(time), y(value)]));
            const first = x(points[0]?.time ?? now);
            return (
              <g>
                <path class={`area s${index}`} d={`${line}L${WIDTH} ${HEIGHT}L${first} ${HEIGHT}Z`} />
                <path class={`line s${index}`} d={line} />
              </g>
            );
          })}
        </svg>
        <span class="tick high">{decimal(top, top < 10 ? 1 : 0)}</span>
        <span class="tick low">0</span>
      </div>
      <p class="axis" aria-hidden="true">
        <span>{seconds} s ago</span>
        <span>now</span>
      </p>
    </figure>
  );
}
