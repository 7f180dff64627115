// A sentence as tokens: words, single ideographs, emoji and punctuation marks.

export const maxTokens = 64;
/** Longer texts are cut before they are read, so that a pasted book does no harm. */
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
  /** How many tokens there would have been; more than `tokens.length` when the text was cut. */
  found: number;
}

export function tokenise(text: string): Tokenised {
  const all = text.match(token) ?? [];
  return { tokens: all.slice(0, maxTokens), found: all.length };
}

/** What makes two tokens the same word: "The" and "the" are. */
export function identityOf(word: string): string {
  return word.normalize('NFKC').toLowerCase();
}

/** The last word that stood before, or the last word: most heads have something to show there. */
export function tellingToken(tokens: readonly string[]): number {
  const words = tokens.map(identityOf);
  const repeated = words.findLastIndex((word, i) => words.indexOf(word) < i);
  return repeated >= 0 ? repeated : tokens.length - 1;
}
