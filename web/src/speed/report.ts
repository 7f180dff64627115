// The texts of the speed section about its measurements.

import { csvField } from '../base/format.js';
import { median } from '../base/timing.js';
import { sizes, type Engine, type Row, type SizeId } from './messages.js';

/** If outputs differ by more than this, they are not results of the same operation. */
export const mostDifference = 1e-4;

export interface Reported {
  readonly name: string;
  readonly note: string;
  readonly failure: string;
  readonly milliseconds: number;
  readonly fastest: number;
  readonly slowest: number;
  readonly difference: number;
  /** Speed relative to plain JavaScript; null if the outputs differ, and for plain JavaScript itself. */
  readonly timesPlain: number | null;
}

const isPlain = ({ name }: Pick<Row, 'name'>): boolean => name === 'Plain JavaScript';

export function reported(rows: readonly Row[]): Reported[] {
  const plain = median(rows.find(isPlain)?.samples ?? []);
  return rows.map((row) => {
    const { name, note, failure, samples, difference } = row;
    const milliseconds = median(samples);
    const comparable = !failure && !isPlain(row) && difference <= mostDifference && plain > 0;
    return {
      ...{ name, note, failure, milliseconds, difference },
      fastest: Math.min(...samples),
      slowest: Math.max(...samples),
      timesPlain: comparable ? plain / milliseconds : null,
    };
  });
}

/** Three significant digits, without powers of ten: "0.0123", "1.23", "123". */
export function significant(value: number): string {
  if (!(value > 0)) return '0';
  const digits = Math.max(0, 2 - Math.floor(Math.log10(value)));
  return value.toFixed(Math.min(digits, 6));
}

/** Writes a number as for example "2 × 10⁻⁷", rounded up, so that the text is an upper limit. */
export function power(value: number): string {
  if (!Number.isFinite(value)) return '∞';
  if (value === 0) return '0';
  let exponent = Math.floor(Math.log10(value));
  let first = Math.ceil(value / 10 ** exponent - 1e-9);
  if (first === 10) [first, exponent] = [1, exponent + 1];
  const superscript = String(exponent).replace(/./g, (sign) => '⁰¹²³⁴⁵⁶⁷⁸⁹'[Number(sign)] ?? '⁻');
  return `${first}\u00a0×\u00a010${superscript}`;
}

const factor = (value: number): string => value.toFixed(value >= 10 ? 0 : 1);

/** Compares a row with plain JavaScript in words, or says why there is no comparison. */
export function comparison({ name, failure, timesPlain, difference }: Reported): string {
  if (failure) return '';
  if (isPlain({ name })) return 'the baseline';
  if (timesPlain === null) return `outputs differ by ${power(difference)}, so the times are not compared`;
  const outputs = `results differ by at most ${power(difference)}`;
  return timesPlain < 1
    ? `plain JavaScript is ${factor(1 / timesPlain)} times as fast; ${outputs}`
    : `${factor(timesPlain)} times as fast as plain JavaScript; ${outputs}`;
}

/** The browser, its system and its number of processors, if the browser tells them. */
export function machineName({ userAgent, hardwareConcurrency }: Pick<Navigator, 'userAgent' | 'hardwareConcurrency'>): string {
  const browsers = [
    ['Edge', /Edg\/(\d+)/],
    ['Firefox', /Firefox\/(\d+)/],
    ['Chromium', /Chrome\/(\d+)/],
    ['Safari', /Version\/(\d+).* Safari/],
  ] as const;
  const systems = [
    ['Android', /Android/],
    ['iOS', /iPhone|iPad/],
    ['Windows', /Windows/],
    ['macOS', /Mac OS X/],
    ['Linux', /Linux|X11/],
  ] as const;
  const [browser, pattern] = browsers.find(([, known]) => known.test(userAgent)) ?? ['A browser', /$/];
  const version = pattern.exec(userAgent)?.[1];
  const [system] = systems.find(([, known]) => known.test(userAgent)) ?? ['an unknown system'];
  const cores = `${hardwareConcurrency} processor ${hardwareConcurrency === 1 ? 'thread' : 'threads'}`;
  return `${[browser, version].filter(Boolean).join(' ')} on ${system}, ${cores}`;
}

export function csvOfSpeed(rows: readonly Reported[], size: SizeId, engine: Engine, machine: string): string {
  const { heads, queries, width } = sizes[size];
  const head = ['machine', 'simd', 'heads', 'tokens', 'head_dim', 'implementation', 'note', 'median_ms', 'fastest_ms'];
  const lines = [[...head, 'slowest_ms', 'times_plain_javascript', 'largest_difference', 'failure']];
  for (const row of rows) {
    const numbers = row.failure ? ['', '', ''] : [row.milliseconds, row.fastest, row.slowest].map(String);
    const times = row.timesPlain === null ? '' : String(row.timesPlain);
    lines.push([
      ...[machine, engine.simd, String(heads), String(queries), String(width), row.name, row.note, ...numbers],
      ...[times, row.failure ? '' : String(row.difference), row.failure],
    ]);
  }
  return `${lines.map((line) => line.map(csvField).join(',')).join('\r\n')}\r\n`;
}
