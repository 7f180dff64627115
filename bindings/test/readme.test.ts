// Every example of both READMEs passes the type check of a strict project, and prints the stated results.

import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { bindings, blocksOf, compile, printsWhatItStates, projectWith } from './examples.ts';

interface Example {
  /** Name of the example's file, without the extension: "README-3". */
  readonly name: string;
  readonly language: string;
  readonly code: string;
}

/** The code blocks of a README. TypeScript blocks after the first continue from it, as the README's text says. */
async function examplesOf(readme: string, label: string): Promise<Example[]> {
  const text = await readFile(join(bindings, readme), 'utf8');
  const blocks = blocksOf(text);
  let start = '';
  return blocks.map(({ language, code, begin }, index) => {
    const name = `${label}-${index + 1}`;
    if (language !== 'ts') return { name, language, code };
    if (start === '') {
      start = code;
      return { name, language, code };
    }
    expect(text.slice(blocks[index - 1]?.end, begin), code).toMatch(/continuing/i);
    return { name, language, code: `${start}\n${code}` };
  });
}

const examples = [...(await examplesOf('README.md', 'package')), ...(await examplesOf('../README.md', 'project'))];
const ofLanguage = (language: string) => examples.filter((example) => example.language === language);

describe('the examples of the READMEs', { timeout: 60_000 }, () => {
  let folder: string;
  const runnable = [...ofLanguage('js'), ...ofLanguage('ts')];
  beforeAll(async () => {
    const files = runnable.map(({ name, language, code }) => [`${name}.${language}`, code] as const);
    folder = await projectWith(Object.fromEntries(files));
  });
  afterAll(() => rm(folder, { recursive: true }));

  it('are in languages that are tested', () => {
    // tests/native/readme.test.mjs tests the other languages.
    expect(new Set(examples.map(({ language }) => language))).toEqual(new Set(['js', 'ts', 'sh', 'cpp']));
    expect([ofLanguage('js').length, ofLanguage('ts').length]).toEqual([13, 10]);
    const shell = ofLanguage('sh').filter(({ name }) => name.startsWith('package'));
    // command.test.ts runs the lines of the other one.
    const lines = shell.flatMap(({ code }) => code.trimEnd().split('\n')).filter((line) => !line.startsWith('npx multihead '));
    expect(lines).toEqual(['npm install multihead']);
  });

  it.each([
    ['TypeScript, nodenext', 'ts', ['--module', 'nodenext']],
    ['TypeScript, bundler', 'ts', ['--module', 'esnext', '--moduleResolution', 'bundler']],
    ['JavaScript', 'js', ['--module', 'nodenext', '--allowJs', '--checkJs', '--noImplicitAny', 'false']],
  ])('have types that a strict project accepts: %s', async (_, language, options) => {
    const files = ofLanguage(language).map(({ name }) => `${name}.${language}`);
    await compile(folder, `run-${language}`, files, ['--types', '', ...options]);
  });

  // The repository has no model with a tokenizer; models.test.ts calls every verb.
  const withFiles = runnable.filter(({ code }) => !code.includes("from 'multihead/models'"));
  it.each(withFiles)('run and print the results that they state: $name', async ({ name, language, code }) => {
    await printsWhatItStates(folder, join(`run-${language}`, `${name}.js`), code);
  });
});
