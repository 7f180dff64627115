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
  /** The least and the largest of these ratios, each of two times of the same round. */
  readonly timesRange: readonly [number, number] | null;
}

const isPlain = ({ name }: Pick<Row, 'name'>): boolean => name === 'Plain JavaScript';

export function reported(rows: readonly Row[]): Reported[] {
  const plainSamples = rows.find(isPlain)?.samples ?? [];
  const plain = median(plainSamples);
  return rows.map((row) => {
    const { name, note, failure, samples, difference } = row;
    const milliseconds = median(samples);
    const ratios = plainSamples.slice(0, samples.length).map((time, round) => time / samples[round]!);
    const comparable = !failure && !isPlain(row) && difference <= mostDifference && plain > 0;
    return {
      ...{ name, note, failure, milliseconds, difference },
      fastest: Math.min(...samples),
      slowest: Math.max(...samples),
      timesPlain: comparable ? plain / milliseconds : null,
      timesRange: comparable ? [Math.min(...ratios), Math.max(...ratios)] : null,
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

/** Billions of floating-point operations per second: a multiplication and an addition for each term of q·k and of weights·v. */
export function gigaflops(size: SizeId, milliseconds: number): string {
  const { heads, queries, width } = sizes[size];
  // Causal: query i sees i + 1 keys.
  const pairs = (queries * (queries + 1)) / 2;
  return `${significant((4 * width * heads * pairs) / milliseconds / 1e6)} GFLOP/s`;
}

/** From this ratio of the slowest round to the fastest, the page says that the machine is busy. */
const busySpread = 2;

/** A sentence if the machine was busy during the measurement; empty if it was calm. */
export function busyLine(rows: readonly Reported[]): string {
  const spread = Math.max(...rows.filter(({ failure }) => !failure).map(({ slowest, fastest }) => slowest / fastest));
  return spread >= busySpread
    ? `This machine is busy: the same call took up to ${factor(spread)} times as long in another round. Close other programs and run again.`
    : '';
}

/** Compares a row with plain JavaScript in words, or says why there is no comparison. */
export function comparison({ name, failure, timesPlain, timesRange, difference }: Reported): string {
  if (failure) return '';
  if (isPlain({ name })) return 'the baseline';
  if (timesPlain === null) return `outputs differ by ${power(difference)}, so the times are not compared`;
  const outputs = `results differ by at most ${power(difference)}`;
  const [low, high] = (timesRange ?? [timesPlain, timesPlain])
    .map((ratio) => factor(timesPlain < 1 ? 1 / ratio : ratio))
    .sort((a, b) => Number(a) - Number(b));
  const range = low === high ? '' : ` (${low} to ${high} in the rounds)`;
  return timesPlain < 1
    ? `plain JavaScript is ${factor(1 / timesPlain)} times as fast${range}; ${outputs}`
    : `${factor(timesPlain)} times as fast as plain JavaScript${range}; ${outputs}`;
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
