// Extracts code from Markdown files, and runs it as a user of the package would.

import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect } from 'vitest';

const run = promisify(execFile);
export const bindings = dirname(dirname(fileURLToPath(import.meta.url)));
const modules = join(bindings, '..', 'node_modules');

export interface Block {
  readonly language: string;
  readonly code: string;
  /** Position of the block in the text. */
  readonly begin: number;
  readonly end: number;
}

/** The code blocks of a Markdown text. */
export const blocksOf = (text: string): Block[] =>
  [...text.matchAll(/^```(\w+)\n([\s\S]*?)^```/gm)].map(({ 0: all, 1: language = '', 2: code = '', index }) => ({
    language,
    code,
    begin: index,
    end: index + all.length,
  }));

/** Makes a new project folder with these files and the package installed. */
export async function projectWith(files: Record<string, string>): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'multihead-examples-'));
  await mkdir(join(folder, 'node_modules'));
  await symlink(bindings, join(folder, 'node_modules', 'multihead'), 'dir');
  await symlink(join(modules, '@types'), join(folder, 'node_modules', '@types'), 'dir');
  await writeFile(join(folder, 'package.json'), '{ "private": true, "type": "module" }');
  for (const [name, code] of Object.entries(files)) await writeFile(join(folder, name), code);
  return folder;
}

/**
 * Compiles files of a project with strict types into another folder of the project; fails with the compiler's errors.
 */
export async function compile(folder: string, outDir: string, files: string[], options: string[]): Promise<void> {
  const always = ['--strict', '--target', 'es2022', '--lib', 'es2022,dom', '--outDir', outDir];
  await run(join(modules, '.bin', 'tsc'), [...always, ...options, ...files], { cwd: folder }).catch(({ stdout }: { stdout: string }) =>
    expect.fail(stdout),
  );
}

/** Runs a compiled file. It must print nothing on standard error, and the results in the comments of its source. */
export async function printsWhatItStates(folder: string, file: string, source: string): Promise<void> {
  const { stdout, stderr } = await run(process.execPath, [file], { cwd: folder });
  // Some examples leave tensors undisposed, and the warning of the garbage collector may come at any time.
  expect(stderr.replace(/^multihead: .* was garbage-collected without dispose\(\)\..*\n/, '')).toBe('');
  // Comments write shapes as (1,2); console.log prints [ 1, 2 ].
  const plain = (text: string) =>
    text
      .replaceAll(/\[ ([\d, ]+) \]/g, '($1)')
      .replaceAll(', ', ',')
      .trim();
  const printed = new Set(
    plain(stdout)
      .split('\n')
      .map((line) => line.trim()),
  );
  // Comments that begin with a number, shape, dtype or boolean are results; others are explanations.
  const comments = [...source.matchAll(/console\.log\(.*\); \/\/ (.*)/g)].map(([, text = '']) => text);
  const stated = comments.filter((text) => /^([\d(]|true|false|f32)/.test(text));
  for (const line of stated) expect(printed).toContain(line);
}
