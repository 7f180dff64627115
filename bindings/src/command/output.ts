// The streams of the command, and its exit codes. The native programs have the same ones.

import { writeFile } from 'node:fs/promises';
import { printable } from '../runtime/text.js';

export const exitCodes = {
  ok: 0,
  /** A run failed, or memory is exhausted. */
  failed: 1,
  /** Wrong arguments, or a folder that is no model or cannot be read. */
  usage: 2,
  /** An output cannot be written. */
  output: 3,
  /** Ctrl-C: the code that a shell reports. */
  interrupted: 130,
} as const;

/** An output that cannot be written. */
export class OutputError extends Error {
  /** True if the reader has closed the pipe, such as `head`, which is no failure. */
  readonly isClosed: boolean;

  constructor(name: string, cause: unknown) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    super(`${printable(name, 400)}: cannot be written (${reason})`, { cause });
    this.isClosed = (cause as { code?: unknown } | undefined)?.code === 'EPIPE';
  }
}

/** The part of standard output and standard error that is used. */
export interface Stream {
  readonly isTTY?: boolean | undefined;
  write(text: string, done: (error?: Error | null) => void): boolean;
  on(event: 'error', listener: (error: Error) => void): unknown;
}

/** Shows a line on a terminal in place of the one before; '' takes it away. */
export const showLine = (messages: Stream, line: string): void => void (messages.isTTY && messages.write(`\r${line}\x1b[K`, () => {}));

/** A line of a table whose first `labels` cells are narrow. */
export const rowOf = (cells: readonly string[], labels: number, width: number): string =>
  `${cells.map((cell, at) => cell.padStart(at < labels ? 5 : width)).join('')}\n`;

/** Writes what `make` gives, if a file is named. Throws OutputError. */
export async function writeChart(file: string | undefined, make: () => string): Promise<void> {
  if (file === undefined) return;
  await writeFile(file, make()).catch((cause: unknown) => {
    throw new OutputError(file, cause);
  });
}

/** The part of standard input that is used: it gives text. */
export type Input = AsyncIterable<string> & { readonly isTTY?: boolean | undefined; setEncoding(encoding: 'utf8'): unknown };

/** The lines of standard input, as they come. */
export async function* linesOf(input: Input): AsyncGenerator<string, void, undefined> {
  input.setEncoding('utf8');
  let rest = '';
  for await (const text of input) {
    const lines = (rest + text).split('\n');
    rest = lines.pop() ?? '';
    yield* lines;
  }
  if (rest !== '') yield rest;
}

/** Standard output, whose failures are errors of the write. */
export class Output {
  readonly #stream: Stream;

  constructor(stream: Stream) {
    this.#stream = stream;
    // Each failure is reported by its write(), too; without a listener it would end the process.
    stream.on('error', () => {});
  }

  get isTerminal(): boolean {
    return this.#stream.isTTY === true;
  }

  /** Resolves when the text is written. Throws OutputError. */
  write(text: string): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#stream.write(text, (error) => (error ? reject(new OutputError('standard output', error)) : resolve()));
    });
  }

  /** Writes one JSON document. */
  json(value: unknown): Promise<void> {
    return this.write(`${JSON.stringify(value)}\n`);
  }
}
