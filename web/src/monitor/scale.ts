/** The next round number from `value` on: 1, 2 or 5 times a power of ten; at least 1. */
export function ceiling(value: number): number {
  if (!(value > 1)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value) ?? 10 * power;
}

/** An SVG path through points. */
export function linePath(points: [number, number][]): string {
  return points.map(([x, y], index) => `${index === 0 ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`).join("") || "M0 0";
}

/** Each part's share of a whole in percent; shares too thin to see are widened to `least` at the cost of the rest. */
export function shares(values: number[], whole: number, least = 0): number[] {
  if (!(whole > 0)) return values.map(() => 0);
  const widened = values.map((value) => (value > 0 ? Math.max(least, (100 * value) / whole) : 0));
  const sum = widened.reduce((total, share) => total + share, 0);
  return sum > 100 ? widened.map((share) => (100 * share) / sum) : widened;
}
