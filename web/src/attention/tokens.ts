// Splits a sentence into tokens: words, numbers, emoji and punctuation marks, of any script.

export const maxTokens = 64;
/** Limit of the text field and of a text in the address, so that a pasted book does no harm. */
export const maxCharacters = 2000;

export interface Tokenized {
  readonly tokens: readonly string[];
  /** Number of tokens in the text; more than `tokens.length` if it exceeds maxTokens. */
  readonly found: number;
}

// The page's own rule for words, because the word segmenters of browsers differ: Chromium finds 2 words in "U.S.A.", Firefox
// 6, and their dictionaries for scripts without spaces differ, too. A shared link must give the same tokens everywhere.
const graphemes = typeof Intl.Segmenter === 'function' ? new Intl.Segmenter('en', { granularity: 'grapheme' }) : undefined;

/** Scripts without spaces between words: every sign is a token. */
const unspaced = /[\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{scx=Thai}\p{scx=Lao}\p{scx=Khmer}\p{scx=Mymr}]/u.source;
const letter = `(?!${unspaced})[\\p{L}\\p{N}_]`;
/** A letter or digit, with its accents and its invisible joiners, as in Persian and Hindi. */
const sign = `${letter}[\\p{M}\\u00ad\\u200c\\u200d\\u2060]*`;
/** A dot, apostrophe or hyphen between two letters is part of the word; a comma only between two digits. */
const joint = `(?:[.'’‐\\u00b7\\u05f3\\u05f4-](?=${letter})|(?<=\\p{N}),(?=\\p{N}))`;
const word = new RegExp(`\\b(?:Mrs?|Dr)\\.|--+|${sign}(?:${joint}?${sign})*`, 'gu');
const visible = /[^\s\p{C}]/u;

const signs = (text: string): string[] => (graphemes ? Array.from(graphemes.segment(text), ({ segment }) => segment) : [...text]);

export function split(text: string): string[] {
  const tokens: string[] = [];
  let end = 0;
  const addSigns = (until?: number): void => {
    tokens.push(...signs(whole.slice(end, until)).filter((each) => visible.test(each)));
  };
  const whole = text.normalize('NFC');
  for (const { 0: found, index } of whole.matchAll(word)) {
    addSigns(index);
    tokens.push(found);
    end = index + found.length;
  }
  addSigns();
  return tokens;
}

let latest: { text: string; result: Tokenized } | undefined;

export function tokenize(text: string): Tokenized {
  if (latest?.text !== text) {
    const all = split(text);
    latest = { text, result: { tokens: all.slice(0, maxTokens), found: all.length } };
  }
  return latest.result;
}

/** Equal for tokens that are the same word, such as "The" and "the". */
export function identityOf(word: string): string {
  return word.normalize('NFKC').toLowerCase();
}

const subscript = (number: number): string => String(number).replace(/\d/g, (digit) => String.fromCharCode(0x2080 + Number(digit)));

const namesOf = new WeakMap<readonly string[], readonly string[]>();

/**
 * The names of the tokens in every section: the token itself, with its position if the word occurs more than once:
 * "the₁ cat sat on the₅ mat".
 */
export function tokenNames(tokens: readonly string[]): readonly string[] {
  let names = namesOf.get(tokens);
  if (!names) {
    const identities = tokens.map(identityOf);
    const count = new Map<string, number>();
    for (const identity of identities) count.set(identity, (count.get(identity) ?? 0) + 1);
    names = tokens.map((token, i) => (count.get(identities[i]!)! > 1 ? token + subscript(i + 1) : token));
    namesOf.set(tokens, names);
  }
  return names;
}

const rightToLeft = /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}]/u;

/** The writing direction of the sentence: the direction of its first letter, as with dir="auto" of the text field. */
export function directionOf(tokens: readonly string[]): 'ltr' | 'rtl' {
  const letter = tokens.join('').match(/\p{L}/u)?.[0];
  return letter !== undefined && rightToLeft.test(letter) ? 'rtl' : 'ltr';
}

/**
 * Index of the token that the page explains first: the last token that repeats an earlier word, else the last token.
 * Most heads have an interesting row there.
 */
export function defaultQuery(tokens: readonly string[]): number {
  const identities = tokens.map(identityOf);
  const repeated = identities.findLastIndex((word, i) => identities.indexOf(word) < i);
  return repeated >= 0 ? repeated : tokens.length - 1;
}
