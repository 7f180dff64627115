// The little Llama, a small English model that comes with the page, in the folder english; `npm run train-english` makes it.

import { englishName } from './limits.js';
import type { GivenFile, GivenFiles } from './messages.js';

/** The text that it reads first. It names people of the novels, one of them twice. */
export const englishText = 'Emma walked to the house with Mr. Knightley. She was very glad to see Mr.';

/** The layer that is shown first: in the other, most letters look at themselves. */
export const englishLayer = 1;

const paths = ['config.json', 'tokenizer.json', 'heads.json', 'model.safetensors'];

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

/** The contents of heads.json, as far as the page uses them; native/dev/english/measure_heads.mjs defines them. */
export interface Measured {
  readonly trainingTokens: number;
  readonly heldOut: { readonly perplexity: number; readonly perplexityOfWords: number };
}

/** How good the model with these files is, in words; empty if they do not tell. */
export async function qualityIn({ files }: GivenFiles): Promise<string> {
  const found = files.find(({ path }) => path === 'heads.json');
  try {
    return qualityOf(JSON.parse((await found?.file.text()) ?? '') as Measured);
  } catch {
    return '';
  }
}

export function qualityOf({ trainingTokens, heldOut: { perplexity, perplexityOfWords } }: Measured): string {
  const tokens = (trainingTokens / 1e6).toFixed(1);
  return `Trained with this library on ${tokens} million tokens of Jane Austen’s novels. On their ends, which it has not seen, its perplexity is ${perplexity.toFixed(0)} a token and ${perplexityOfWords.toFixed(0)} a word: it has learned how her sentences go, not what they mean.`;
}
