// The text of a token on a map: "·" stands for the space before a word, "⏎" for a line break.

import { printable } from '../base/format.js';

/** Tokens of a damaged file may have millions of letters. */
const mostLetters = 40;

/** Signs for a space at the begin of a token: of byte-level BPE (GPT-2), and of SentencePiece. */
const spaceSign = /^[Ġ▁]/u;

/**
 * @param spelled the token as the vocabulary spells it; undefined for a token that a model chose
 * @param decoded the token's text; empty for special tokens
 */
export function labelOf(id: number, decoded: string, spelled?: string): string {
  if (decoded === '' && spelled === undefined) return `token ${id}`;
  // A decoder drops the space of a first word, and writes U+FFFD for a part of a character.
  const isPart = spelled?.startsWith('##') === true || decoded.includes('\ufffd');
  const text = decoded === '' || isPart ? (spelled ?? decoded) : decoded;
  const spaced = spaceSign.test(spelled ?? '') && !/^\s/.test(text) ? ` ${text.replace(spaceSign, '')}` : text;
  return printable(spaced.replaceAll('\n', '⏎').replaceAll(/\s/g, '·'), mostLetters) || `token ${id}`;
}
