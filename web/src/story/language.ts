// The languages of the story. A language is a file of lines "name = text" in texts/.

import { el, rich, type Child } from '../dom/dom.js';
import english from './texts/en.txt?raw';

export type Values = Readonly<Record<string, string | number>>;

/** The files of each language. The story's English comes with its script. */
const files = {
  en: { story: () => Promise.resolve({ default: english }), lessons: () => import('./texts/lessons.en.txt?raw') },
  de: { story: () => import('./texts/de.txt?raw'), lessons: () => import('./texts/lessons.de.txt?raw') },
} as const;
export type Language = keyof typeof files;
export const languages = Object.keys(files) as Language[];

/** The texts of a file by name. Empty lines and lines that begin with # are left out. */
export function textsOf(file: string): ReadonlyMap<string, string> {
  const lines = file.split(/\r?\n/).filter((line) => line.trim() !== '' && !line.startsWith('#'));
  return new Map(
    lines.map((line) => {
      const at = line.indexOf('=');
      return [
        line.slice(0, at).trim(),
        line
          .slice(at + 1)
          .trim()
          .replaceAll(' %', '\u00a0%'),
      ];
    }),
  );
}

export const readTexts = async (language: Language, of: 'story' | 'lessons'): Promise<ReadonlyMap<string, string>> =>
  textsOf((await files[language][of]()).default);

/** The language of the address if the story has it, else the first of the visitor's that it has, else English. */
export function wantedLanguage(given: string | null, preferred: readonly string[]): Language {
  const known = (name: string): Language | undefined => languages.find((language) => language === name.slice(0, 2).toLowerCase());
  return (given !== null && known(given)) || preferred.map(known).find((language) => language !== undefined) || 'en';
}

export interface Words {
  readonly language: Language;
  /** A text as it stands. Throws if there is none of this name. */
  plain(name: string, values?: Values): string;
  /** A number as the language writes it, in sentences and in figures; programs keep their decimal points. */
  number(value: number, digits: number): string;
  /** A share from 0 to 1 as "25 %". */
  percent(share: number, digits?: number): string;
  /** A text in which the values stand out, for elements. */
  shown(name: string, values?: Values): Child[];
}

export async function readWords(language: Language): Promise<Words> {
  const texts = await readTexts(language, 'story');
  const textOf = (name: string): string => {
    const text = texts.get(name);
    if (text === undefined) throw new Error(`The story has no text ${name} in ${language}`);
    return text;
  };
  const parts = (name: string): string[] => textOf(name).split(/(\{\w+\})/);
  const valueOf = (part: string, values: Values): string => String(values[part.slice(1, -1)] ?? '–');
  const isValue = (part: string): boolean => part.startsWith('{');
  const number = (value: number, digits: number): string =>
    value.toLocaleString(language, { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace('-', '−');
  return {
    language,
    number,
    percent: (share, digits = 0) => `${number(100 * share, digits)}\u00a0%`,
    plain: (name, values = {}) =>
      parts(name)
        .map((part) => (isValue(part) ? valueOf(part, values) : part))
        .join(''),
    shown: (name, values = {}) =>
      parts(name).flatMap((part) => (isValue(part) ? [el('strong', { class: 'number' }, valueOf(part, values))] : rich(part))),
  };
}
