import { shares } from "./scale";

export interface Slice {
  name: string;
  value: number;
  colour?: number; // its place by default
}

const COLOURS = 6;

function colour({ colour }: Slice, index: number): string {
  return `s${(colour ?? index) % COLOURS}`;
}

const LEAST_SHARE = 0.6; // percent of the width: a part that is there can be seen

/** A bar of parts out of `whole`. The names and numbers stand in a legend beside it, so it is hidden from readers. */
export function Bar({ slices, whole }: { slices: Slice[]; whole: number }) {
  const widths = shares(slices.map(({ value }) => value), whole, LEAST_SHARE);
  let from = 0;
  return (
    <svg class="slices" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
      <rect class="free" width="100" height="10" />
      {widths.map((width, index) => {
        const x = from;
        from += width;
        return <rect class={`fill ${colour(slices[index]!, index)}`} x={x} width={Math.max(0, width - 0.25)} height="10" />;
      })}
    </svg>
  );
}

/** The parts of a bar by name, with their numbers. */
export function Legend({ slices, format }: { slices: Slice[]; format: (value: number) => string }) {
  return (
    <dl class="parts">
      {slices.map((slice, index) => (
        <div key={slice.name}>
          <dt>
            <i class={`swatch ${colour(slice, index)}`} />
            {slice.name}
          </dt>
          <dd>{format(slice.value)}</dd>
        </div>
      ))}
    </dl>
  );
}
