// Splits a sentence into tokens: words, single ideographs, emoji and punctuation marks.

export const maxTokens = 64;
/** Limit of the text field and of a text in the address, so that a pasted book does no harm. */
export const maxCharacters = 2000;

export const presets: readonly string[] = [
  'The bank by the river approved my loan',
  'the black cat sat on the mat',
  'He is playing football',
  'The cat that was sitting on the mat ate the fish',
  'The cat sat on the',
];

const ideograph = String.raw`[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]`;
const emoji = String.raw`\p{Extended_Pictographic}(?:\p{Emoji_Modifier}|\uFE0F|\u200D\p{Extended_Pictographic})*`;
const letters = String.raw`(?:(?!${ideograph})[\p{L}\p{M}\p{N}])+`;
const word = String.raw`${letters}(?:['’-]${letters})*`;
const mark = String.raw`[^\s\p{L}\p{M}\p{N}\p{C}]`;
const token = new RegExp([ideograph, word, emoji, mark].join('|'), 'gu');

export interface Tokenised {
  tokens: string[];
  /** Number of tokens in the text; more than `tokens.length` if it exceeds maxTokens. */
  found: number;
}

export function tokenise(text: string): Tokenised {
  const all = text.match(token) ?? [];
  return { tokens: all.slice(0, maxTokens), found: all.length };
}

/** Equal for tokens that are the same word, such as "The" and "the". */
export function identityOf(word: string): string {
  return word.normalize('NFKC').toLowerCase();
}

/**
 * Index of the token that the page explains first: the last one that repeats an earlier word, else the
 * last one. Most heads have an interesting row there.
 */
export function tellingToken(tokens: readonly string[]): number {
  const words = tokens.map(identityOf);
  const repeated = words.findLastIndex((word, i) => words.indexOf(word) < i);
  return repeated >= 0 ? repeated : tokens.length - 1;
}
