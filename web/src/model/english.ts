// The small English model that comes with the page, in the folder english; `npm run train-english` makes it.

import { formatPercent } from '../base/format.js';
import type { GivenFile, GivenFiles } from './messages.js';

/** Its name in addresses. */
export const englishName = 'small English model';

/** The text that it reads first. It names people of the novels, one of them twice. */
export const englishText = 'Emma walked to the house with Mr. Knightley. She was very glad to see Mr.';

/** The layer that is shown first: in the other, most letters look at themselves. */
export const englishLayer = 1;

const findingsFile = 'heads.json';
const paths = ['config.json', 'tokenizer.json', findingsFile, 'model.safetensors'];

/**
 * Fetches its files.
 * @param page the page's address
 */
export async function englishFiles(page: string): Promise<GivenFiles> {
  const fetched = paths.map(async (path): Promise<GivenFile> => {
    const response = await fetch(new URL(`english/${path}`, page));
    if (!response.ok) throw new Error(`${path}: HTTP status ${response.status}`);
    return { path, file: new File([await response.blob()], path) };
  });
  return { name: englishName, files: await Promise.all(fetched) };
}

/** Mean weights of a head. */
interface Scores {
  readonly previous: number;
  readonly first: number;
  readonly itself: number;
  readonly punctuation: number;
  readonly induction: number;
}

/** The contents of heads.json, as far as the page uses them; native/dev/english/measure_heads.mjs defines the scores. */
export interface Measured {
  readonly trainingTokens: number;
  readonly heldOut: { readonly perplexity: number; readonly perplexityOfWords: number };
  /** The scores of a head with equal weights. */
  readonly chance: Scores;
  readonly heads: readonly (Scores & { readonly layer: number; readonly head: number })[];
}

export interface Habit {
  readonly layer: number;
  readonly head: number;
  /** Names the scores of the head that are far above the scores of equal weights, the farthest first. */
  readonly sentence: string;
}

/** The measurements in words. */
export interface Findings {
  readonly quality: string;
  /** One for each head that does something far more than a head with equal weights. */
  readonly habits: readonly Habit[];
  /** Says so if no head copies; else empty. */
  readonly missing: string;
}

/** The findings among the files of a model; undefined if it has none that can be read. */
export async function findingsOf({ files }: GivenFiles): Promise<Findings | undefined> {
  const found = files.find(({ path }) => path === findingsFile);
  try {
    const measured = JSON.parse((await found?.file.text()) ?? '') as Measured;
    return { quality: qualityOf(measured), habits: habitsOf(measured), missing: missingOf(measured) };
  } catch {
    return undefined;
  }
}

const names: Readonly<Record<keyof Scores, string>> = {
  previous: 'is on the token before',
  first: 'is on the first token',
  itself: 'is on the token itself',
  punctuation: 'is on punctuation',
  induction: 'is on what followed the same token last time, where a text repeats',
};

/** The page names no score below this share. */
const least = 0.2;
/** The page names no score below 2.5 times the score of equal weights. */
const leastTimes = 2.5;

const isStrong = (name: keyof Scores, scores: Scores, chance: Scores): boolean => scores[name] >= least && scores[name] >= leastTimes * chance[name];

export function habitsOf({ heads, chance }: Measured): readonly Habit[] {
  return heads.flatMap((scores) => {
    const { layer, head } = scores;
    const times = (name: keyof Scores): number => scores[name] / chance[name];
    const strong = (Object.keys(names) as (keyof Scores)[]).filter((name) => isStrong(name, scores, chance)).sort((a, b) => times(b) - times(a));
    if (strong.length === 0) return [];
    const parts = strong.map((name) => `${formatPercent(scores[name])} of its weight ${names[name]} (equal weights: ${formatPercent(chance[name])})`);
    return [{ layer, head, sentence: `${parts.join('; ')}.` }];
  });
}

export function missingOf({ heads, chance }: Measured): string {
  if (heads.some((scores) => isStrong('induction', scores, chance))) return '';
  const most = Math.max(...heads.map(({ induction }) => induction));
  return `None has learned induction, to look at what followed the same token last time: where a text repeats, that gets at most ${formatPercent(most)} of a head’s weight (equal weights: ${formatPercent(chance.induction)}).`;
}

export function qualityOf({ trainingTokens, heldOut: { perplexity, perplexityOfWords } }: Measured): string {
  const tokens = (trainingTokens / 1e6).toFixed(1);
  return `Trained with this library on ${tokens} million tokens of Jane Austen’s novels. On their ends, which it has not seen, its perplexity is ${perplexity.toFixed(0)} a token and ${perplexityOfWords.toFixed(0)} a word: it has learned how her sentences go, not what they mean.`;
}
