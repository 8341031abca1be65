/** Sizes, times and moments as people read them. */

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

function unitOf(bytes: number): number {
  let unit = 0;
  for (let amount = bytes; amount >= 1000 && unit < UNITS.length - 1; unit++) {
    amount /= 1024;
  }
  return unit;
}

function amount(bytes: number, unit: number): string {
  const value = bytes / 1024 ** unit;
  return String(unit ? Number(value.toPrecision(value < 1 ? 1 : 3)) : Math.round(value));
}

/** Three digits and a unit, powers of 1024: "1.2 GiB". */
export function size(bytes: number): string {
  const unit = unitOf(bytes);
  return `${amount(bytes, unit)} ${UNITS[unit]}`;
}

/** A part of a whole in the whole's unit, "1.2/4 GiB"; alone where there is no whole (0). */
export function sizeOf(bytes: number, whole: number): string {
  if (!whole) {
    return size(bytes);
  }
  const unit = unitOf(whole);
  return `${amount(bytes, unit)}/${amount(whole, unit)} ${UNITS[unit]}`;
}

const SPANS: [string, number][] = [
  ['d', 86400],
  ['h', 3600],
  ['min', 60],
  ['s', 1]
];

/** A time in two units at most: "12 ms", "0.43 s", "2 min 5 s", "1 h", "3 d 4 h". */
export function duration(seconds: number): string {
  if (seconds > 0 && seconds < 0.0995) {
    return `${Number((seconds * 1000).toPrecision(2))} ms`;
  }
  if (seconds < 59.95) {
    return `${Number(seconds.toPrecision(seconds < 1 ? 2 : 3))} s`;
  }
  const whole = Math.round(seconds);
  const first = SPANS.findIndex(([, worth]) => whole >= worth);
  const [unit, worth] = SPANS[first];
  const [below, smaller] = SPANS[first + 1];
  // Whoever reads "23 min" asks for no seconds.
  const rest = unit === 'min' && whole >= 600 ? 0 : Math.floor((whole % worth) / smaller);
  return `${Math.floor(whole / worth)} ${unit}${rest ? ` ${rest} ${below}` : ''}`;
}

/** The percentage that a part is of a whole, from 0 to 100. */
export function percentage(part: number, whole: number): number {
  return whole > 0 ? Math.min(100, Math.max(0, (100 * part) / whole)) : 0;
}

/** The most characters of a name that are shown. */
export const MOST_CHARACTERS = 60;

/** A name cut in its middle, without line breaks and what else does not print. */
export function short(name: string, most = MOST_CHARACTERS): string {
  const characters = Array.from(
    // Enough of both ends; spreading a name of any length would cost its length.
    name.length > 8 * most ? name.slice(0, 4 * most) + name.slice(-4 * most) : name
  ).map(each => (/[\p{C}\p{Z}]/u.test(each) ? ' ' : each));
  if (characters.length <= most) {
    return characters.join('');
  }
  const half = Math.floor((most - 1) / 2);
  return [...characters.slice(0, half), '…', ...characters.slice(-half)].join('');
}

/** What a path ends with. */
export function basename(path: string): string {
  return path.slice(path.lastIndexOf('/') + 1);
}
