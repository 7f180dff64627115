import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { sceneIds } from '../../src/story/stage.js';
import { languages, readWords, textsOf, wantedLanguage } from '../../src/story/language.js';

const folder = (name: string): string => fileURLToPath(new URL(`../../src/story/${name}`, import.meta.url));
const read = (path: string): string => readFileSync(path, 'utf8');
const filesOf = (kind: string) => languages.map((language) => textsOf(read(folder(`texts/${kind}${language}.txt`))));
/** The names in braces, for which the page puts values. */
const slots = (text: string): string[] => [...new Set(text.match(/\{\w+\}/g))].sort();

describe.each(['', 'lessons.'])('the texts %s', (kind) => {
  it('have the same names, and the same places to fill in, in every language', () => {
    const [english, ...others] = filesOf(kind);
    for (const other of others) {
      expect([...other.keys()].sort()).toEqual([...english!.keys()].sort());
      for (const [name, text] of english!) {
        expect(slots(other.get(name)!), name).toEqual(slots(text));
        expect(other.get(name), name).not.toBe('');
        if (name.endsWith('.scene')) expect(other.get(name)).toBe(text);
      }
    }
  });
});

describe('the texts', () => {
  it('have every name that the scenes ask for, and no other', () => {
    const files = readdirSync(folder('.')).filter((name) => name.endsWith('.ts'));
    const source = files.map((name) => read(folder(name))).join('\n');
    const scenes: readonly string[] = sceneIds;
    const known = new Set([...filesOf('')[0]!.keys()]);
    for (const scene of scenes)
      for (const part of ['title', 'before', 'do', 'after', 'so']) expect(known, `${scene}.${part}`).toContain(`${scene}.${part}`);
    for (const name of known) {
      const [scene, part] = name.split('.') as [string, string | undefined];
      const isPart = part !== undefined && scenes.includes(scene) && ['title', 'before', 'after', 'so'].includes(part);
      // The code makes some names from two parts: jobs.${name}, mask.${name}, cache.${name}.
      const isMade = source.includes(`\`${scene}.\${name}\``);
      expect(isPart || isMade || source.includes(`'${name}'`), name).toBe(true);
    }
  });

  it('are filled in, and a name that does not exist is an error', async () => {
    const words = await readWords('en');
    expect(words.plain('position', { n: 3 })).toBe('Scene 3 of 8');
    expect(words.plain('position')).toBe('Scene – of 8');
    expect(() => words.plain('positions')).toThrow('no text positions in en');
    const german = await readWords('de');
    expect(german.plain('position', { n: 3 })).toBe('Szene 3 von 8');
    expect([german.number(-1234.5, 2), german.percent(0.9987, 1), words.percent(0.9987, 1)]).toEqual(['−1.234,50', '99,9\u00a0%', '99.9\u00a0%']);
  });
});

describe('the language', () => {
  it.each([
    [null, ['de-AT', 'en'], 'de'],
    [null, ['fr', 'de'], 'de'],
    [null, ['fr'], 'en'],
    [null, [], 'en'],
    ['de', ['en'], 'de'],
    ['en', ['de'], 'en'],
    ['xx', ['de'], 'de'],
    ['', ['de'], 'de'],
  ] as const)('of the address %s and of the visitor %s is %s', (given, preferred, expected) => {
    expect(wantedLanguage(given, preferred)).toBe(expected);
  });
});
