/** A picture of the boxes: three tiers and a lid, waves in gold on the lacquer. */

const TIERS = [46, 78, 110];
const WAVES = Array.from({ length: 6 }, (_, index) => 26 + 24 * index);

export function Stack() {
  return (
    <svg class="picture" viewBox="0 0 172 146" aria-hidden="true">
      <path class="lid" d="M2 42V32Q2 27 6 24L22 12Q25 10 29 10H143Q147 10 150 12L166 24Q170 27 170 32V42Z" />
      <path class="rim" d="M2 37H170V42H2Z" />
      <path class="wave" d="M40 36a46 21 0 0 1 92 0M52 36a34 15 0 0 1 68 0M64 36a22 10 0 0 1 44 0M75 36a11 5 0 0 1 22 0" />
      {TIERS.map((top, tier) => (
        <g>
          <path class="body" d={tier === 2 ? `M6 ${top}H166V${top + 24}Q166 ${top + 29} 161 ${top + 29}H11Q6 ${top + 29} 6 ${top + 24}Z` : `M6 ${top}H166V${top + 29}H6Z`} />
          <path class="rim" d={`M6 ${top}H166V${top + 2.5}H6Z`} />
          <path class="wave" d={WAVES.filter((_, index) => (index + tier) % 3 !== 1).map((x) => wave(x, top + 29)).join("")} />
        </g>
      ))}
    </svg>
  );
}

/** Three arcs over each other, standing on `y`. */
function wave(x: number, y: number): string {
  return [12, 8, 4].map((radius) => `M${x - radius} ${y}a${radius} ${radius} 0 0 1 ${2 * radius} 0`).join("");
}
