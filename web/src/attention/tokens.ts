// Splits a sentence into tokens: words, numbers, emoji and punctuation marks, of any script.

export const maxTokens = 64;
/** Limit of the text field and of a text in the address, so that a pasted book does no harm. */
export const maxCharacters = 2000;

export interface Tokenized {
  readonly tokens: readonly string[];
  /** Number of tokens in the text; more than `tokens.length` if it exceeds maxTokens. */
  readonly found: number;
}

// One language for all visitors, so that a shared link gives the same tokens. Scripts without spaces,
// such as Thai, are split by a dictionary in every language.
const segmenter = (granularity: 'word' | 'grapheme') =>
  typeof Intl.Segmenter === 'function' ? new Intl.Segmenter('en', { granularity }) : undefined;
const words = segmenter('word');
const graphemes = segmenter('grapheme');

const visible = /[^\s\p{C}]/u;
const hyphen = /^[-‐]$/;
/** Firefox ends a word after a combining accent; split() joins the two parts. */
const accented = /[\u0300-\u036f]$/;

function split(text: string): string[] {
  // Fallback for browsers older than 2024, which lack Intl.Segmenter.
  if (!words || !graphemes) return text.match(/[\p{L}\p{M}\p{N}]+|[^\s\p{C}]/gu) ?? [];
  const tokens: string[] = [];
  // End of the last token, if a hyphen and a word may continue it: "re-use" is one word.
  let openEnd = -1;
  let joining = false;
  for (const { segment, index, isWordLike } of words.segment(text.normalize('NFC'))) {
    const touches = index === openEnd;
    if (isWordLike && touches && accented.test(tokens.at(-1)!)) {
      tokens.push(tokens.pop()! + segment);
    } else if (isWordLike && joining && touches) {
      tokens.splice(-2, 2, tokens.at(-2)! + tokens.at(-1)! + segment);
      joining = false;
    } else if (isWordLike) {
      tokens.push(segment);
      joining = false;
    } else {
      joining = touches && !joining && hyphen.test(segment);
      for (const { segment: sign } of graphemes.segment(segment)) {
        if (visible.test(sign)) tokens.push(sign);
      }
      if (!joining) continue;
    }
    openEnd = index + segment.length;
  }
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

const subscript = (number: number): string =>
  String(number).replace(/\d/g, (digit) => String.fromCharCode(0x2080 + Number(digit)));

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

const rightToLeft =
  /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}]/u;

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
