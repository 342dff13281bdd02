/** Numbers as people read them. A missing number is a dash. */

const DASH = "–";

export function count(value: number | undefined): string {
  return value === undefined ? DASH : Math.round(value).toLocaleString("en");
}

export function decimal(value: number | undefined, digits = 1): string {
  return value === undefined || !Number.isFinite(value) ? DASH : value.toFixed(digits);
}

export function percent(part: number | undefined, whole: number | undefined): string {
  return part === undefined || !whole ? DASH : `${Math.round((100 * part) / whole)} %`;
}

/** Decimal units, as disks and the server count: 1 GB is a thousand million bytes. */
export function bytes(value: number | undefined): string {
  if (value === undefined) return DASH;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value.toFixed(unit === 0 || value >= 100 ? 0 : 1)} ${units[unit]}`;
}

export function duration(seconds: number | undefined): string {
  if (seconds === undefined) return DASH;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}
