// The text of a token on a map: "·" stands for the space before a word, "⏎" for a line break, "⟨E2 80⟩" for bytes that are a part of
// a character.

import { printable } from '../base/format.js';

/** Tokens of a damaged file may have millions of letters. */
const mostLetters = 40;

/** Signs for a space at the begin of a token: of byte-level BPE (GPT-2), and of SentencePiece. */
const spaceSign = /^[Ġ▁]/u;

/** Bytes that byte-level BPE spells as themselves; it spells the others as U+0100, U+0101 and so on. */
const isItself = (byte: number): boolean => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
const others = Array.from({ length: 256 }, (_, byte) => byte).filter((byte) => !isItself(byte));

/** The bytes of a token as byte-level BPE or SentencePiece spells them. */
function bytesOf(spelled: string): number[] {
  const one = /^<0x([\dA-F]{2})>$/i.exec(spelled)?.[1];
  return one ? [Number.parseInt(one, 16)] : Array.from(spelled, (letter) => others[letter.codePointAt(0)! - 256] ?? letter.codePointAt(0)!);
}

/** The text of a token up to a part of a character, and the bytes from there on. */
function withBytes(decoded: string, spelled: string | undefined): string {
  const [whole = ''] = decoded.split('\ufffd');
  const bytes = bytesOf(spelled ?? '').slice(new TextEncoder().encode(whole).length);
  return `${whole}⟨${bytes.map((byte) => byte.toString(16).toUpperCase().padStart(2, '0')).join(' ') || 'part of a character'}⟩`;
}

/**
 * @param spelled the token as the vocabulary spells it; undefined for a token that a model chose, unless it is a part of a character
 * @param decoded the token's text; empty for special tokens
 */
export function labelOf(id: number, decoded: string, spelled?: string): string {
  if (decoded === '' && spelled === undefined) return `token ${id}`;
  // A decoder drops the space of a first word, and writes U+FFFD for a part of a character.
  if (decoded.includes('\ufffd')) return printable(withBytes(decoded, spelled).replaceAll('\n', '⏎').replaceAll(/^\s/g, '·'), mostLetters);
  const text = decoded === '' || spelled?.startsWith('##') ? (spelled ?? decoded) : decoded;
  const spaced = spaceSign.test(spelled ?? '') && !/^\s/.test(text) ? ` ${text.replace(spaceSign, '')}` : text;
  return printable(spaced.replaceAll('\n', '⏎').replaceAll(/\s/g, '·'), mostLetters) || `token ${id}`;
}
