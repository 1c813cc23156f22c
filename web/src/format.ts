// Numbers and times as text.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const few = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 4 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 4 });

export function compact(value: number): string {
  return short.format(value);
}

export function count(value: number): string {
  return whole.format(value);
}

export function number(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : few.format(value);
}

export function rate(value: number): string {
  return value >= 100 ? whole.format(value) : few.format(value);
}

export function percent(share: number): string {
  return `${Math.round(100 * share)}%`;
}

export function clock(seconds: number): string {
  const all = Math.max(0, Math.floor(seconds));
  const two = (value: number): string => String(value).padStart(2, "0");
  return `${Math.floor(all / 3600)}:${two(Math.floor(all / 60) % 60)}:${two(all % 60)}`;
}

export function bytes(value: number): string {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let left = value;
  while (left >= 1024 && unit < units.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${left >= 100 || unit === 0 ? whole.format(left) : left.toFixed(1)} ${units[unit]}`;
}
