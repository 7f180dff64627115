// Texts for the page and its files: numbers, lists, messages of errors, fields of CSV, and names made safe to show.

/** Formats a number with the minus sign U+2212 and ∞; never returns "−0.000". */
export function formatNumber(value: number, digits = 3): string {
  if (Number.isNaN(value)) return 'NaN';
  const size = Math.abs(value) === Infinity ? '∞' : Math.abs(value).toFixed(digits);
  const negative = value < 0 && (size === '∞' || Number(size) !== 0);
  return negative ? `−${size}` : size;
}

export function formatMilliseconds(value: number): string {
  if (value < 0.01) return '< 0.01 ms';
  return `${value.toFixed(value < 1 ? 2 : 1)} ms`;
}

/** A share from 0 to 1 as "25 %", with a space that does not break. */
export const formatPercent = (share: number, digits = 0): string => `${(100 * share).toFixed(digits)}\u00a0%`;

/** Shares that add up to 1 as whole percents that add up to 100: the largest remainders are rounded up. */
export function wholePercents(shares: readonly number[]): number[] {
  const percents = shares.map((share) => Math.floor(100 * share));
  const remainder = (i: number): number => 100 * shares[i]! - Math.floor(100 * shares[i]!);
  const order = [...shares.keys()].sort((a, b) => remainder(b) - remainder(a));
  const missing = 100 - percents.reduce((a, b) => a + b, 0);
  for (const i of order.slice(0, missing)) percents[i]! += 1;
  return percents;
}

export const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

const mostListed = 10;

/** "a, b and 512 more": the first ten of a list. */
export function listed(names: readonly string[]): string {
  const more = names.length - mostListed;
  return names.slice(0, mostListed).join(', ') + (more > 0 ? ` and ${more} more` : '');
}

/** "1 head", "4 heads". */
export const counted = (count: number, noun: string): string => `${count} ${noun}${count === 1 ? '' : 's'}`;

export function formatShape(shape: readonly number[]): string {
  return `(${shape.join(', ')})`;
}

/** A field of a CSV file, in quotation marks if it needs them (RFC 4180). */
export const csvField = (text: string): string => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

/** The square root with at most two digits after the point: "4", "5.66". */
export const formatRoot = (value: number): string => String(Number(Math.sqrt(value).toFixed(2)));

/** Control characters, line separators, bidirectional controls and unpaired surrogates. */
const controls = /[\p{Cc}\p{Zl}\p{Zp}\p{Cs}\p{Bidi_Control}]/gu;

const escaped = (text: string): string => text.replace(controls, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, '0')}`);

/** The first `most` UTF-16 units, without half of a surrogate pair, and "…" if there are more. */
const shortened = (text: string, most: number): string => (text.length > most ? `${text.slice(0, most).replace(/[\ud800-\udbff]$/, '')}…` : text);

/** At most `most` characters of a text, with escapes such as "\u202e" for control characters. */
export const printable = (text: string, most = 80): string => escaped(shortened(text, most));

/** Like printable(), in quotation marks, with the escapes of JSON. */
export const quoted = (text: string, most = 80): string => escaped(JSON.stringify(shortened(text, most)));
