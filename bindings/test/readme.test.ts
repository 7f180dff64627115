// Every example of both READMEs: it passes the type check of a strict project, and prints the results that it states.

import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

const run = promisify(execFile);
const bindings = dirname(dirname(fileURLToPath(import.meta.url)));
const tsc = join(bindings, '..', 'node_modules', '.bin', 'tsc');

interface Example {
  /** Its file, without the extension: "README-3". */
  readonly name: string;
  readonly language: string;
  readonly code: string;
}

/** The code blocks of a README. TypeScript blocks after the first continue from it, as the README's text says. */
async function examplesOf(readme: string, label: string): Promise<Example[]> {
  const text = await readFile(join(bindings, readme), 'utf8');
  const blocks = [...text.matchAll(/^```(\w+)\n([\s\S]*?)^```/gm)];
  let start = '';
  return blocks.map(([, language = '', code = ''], index) => {
    const name = `${label}-${index + 1}`;
    if (language !== 'ts') return { name, language, code };
    if (start === '') {
      start = code;
      return { name, language, code };
    }
    const before = blocks[index - 1];
    const from = (before?.index ?? 0) + (before?.[0].length ?? 0);
    expect(text.slice(from, blocks[index]?.index), code).toMatch(/continuing/i);
    return { name, language, code: `${start}\n${code}` };
  });
}

const examples = [
  ...(await examplesOf('README.md', 'package')),
  ...(await examplesOf('../README.md', 'project')),
];
const ofLanguage = (language: string) => examples.filter((example) => example.language === language);

describe('the examples of the READMEs', { timeout: 60_000 }, () => {
  let folder: string;
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'multihead-readme-'));
    await mkdir(join(folder, 'node_modules'));
    await symlink(bindings, join(folder, 'node_modules', 'multihead'), 'dir');
    await writeFile(join(folder, 'package.json'), '{ "private": true, "type": "module" }');
    for (const { name, language, code } of examples) {
      if (language === 'ts' || language === 'js') {
        await writeFile(join(folder, `${name}.${language}`), code);
      }
    }
  });
  afterAll(() => rm(folder, { recursive: true }));

  it('are in languages that are tested', () => {
    // tests/native/readme.test.mjs tests the other languages.
    expect(new Set(examples.map(({ language }) => language))).toEqual(
      new Set(['js', 'ts', 'sh', 'cpp', 'cmake']),
    );
    expect([ofLanguage('js').length, ofLanguage('ts').length]).toEqual([8, 8]);
    const shell = ofLanguage('sh').filter(({ name }) => name.startsWith('package'));
    expect(shell.map(({ code }) => code)).toEqual(['npm install multihead\n']);
  });

  it.each([
    ['TypeScript, nodenext', 'ts', ['--module', 'nodenext']],
    ['TypeScript, bundler', 'ts', ['--module', 'esnext', '--moduleResolution', 'bundler']],
    ['JavaScript', 'js', ['--module', 'nodenext', '--allowJs', '--checkJs', '--noImplicitAny', 'false']],
  ])('have types that a strict project accepts: %s', async (_, language, options) => {
    const files = ofLanguage(language).map(({ name }) => `${name}.${language}`);
    const always = ['--strict', '--target', 'es2022', '--types', '', '--lib', 'es2022,dom'];
    await run(tsc, [...always, ...options, '--outDir', `run-${language}`, ...files], {
      cwd: folder,
    }).catch(({ stdout }: { stdout: string }) => expect.fail(stdout));
  });

  const runnable = [...ofLanguage('js'), ...ofLanguage('ts')];
  it.each(runnable)('run and print the results that they state: $name', async ({ name, language, code }) => {
    const file = join(`run-${language}`, `${name}.js`);
    const { stdout, stderr } = await run(process.execPath, [file], { cwd: folder });
    // Continuations leave tensors undisposed, and the warning of the garbage collector may come at any time.
    expect(stderr.replace(/^multihead: .* was garbage-collected without dispose\(\)\..*\n/, '')).toBe('');
    // The README writes shapes as (1,2); console.log prints [ 1, 2 ].
    const plain = (text: string) =>
      text.replaceAll(/\[ ([\d, ]+) \]/g, '($1)').replaceAll(', ', ',').trim();
    const printed = new Set(plain(stdout).split('\n').map((line) => line.trim()));
    // Comments that begin with a number, shape or boolean are results; others are explanations.
    const comments = [...code.matchAll(/console\.log\(.*\); \/\/ (.*)/g)].map(([, text = '']) => text);
    const stated = comments.filter((text) => /^([\d(]|true|false)/.test(text));
    for (const line of stated) expect(printed).toContain(line);
  });
});
