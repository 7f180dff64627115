// From tokens to x (N, 64): four blocks of 16 features, computed by rules, not learned.
//
//   position   sin and cos of the position at eight speeds, as in Vaswani et al. 2017, 3.5
//   word       a code word of 16 signs for the token, the same in upper and lower case
//   letter     a code word of 16 signs for its first letter
//   kind       a constant 1, and traits of the spelling or of a short list of words

import { identityOf } from './tokens.js';

export const embedDim = 64;
export const blockSize = 16;

export type BlockName = 'position' | 'word' | 'letter' | 'kind';
export const blocks: readonly { name: BlockName; start: number }[] = [
  { name: 'position', start: 0 },
  { name: 'word', start: 16 },
  { name: 'letter', start: 32 },
  { name: 'kind', start: 48 },
];
export const blockStart = (name: BlockName): number => blocks.find((block) => block.name === name)!.start;

/**
 * Radians per token, from fast to slow. A search chose the start 3 and the ratio 0.672: at every distance from 1 to 64,
 * the mean of the eight cosines is below 0.41, and the mean of cosines 0, 1, 2 and 7 is below 0.51. At distance 0 both
 * means are 1.
 */
export const speeds: readonly number[] = Array.from({ length: 8 }, (_, f) => 3 * 0.672 ** f);

/** The pair (sin, cos) for each speed. */
export function positionCode(position: number): number[] {
  return speeds.flatMap((speed) => [Math.sin(speed * position), Math.cos(speed * position)]);
}

// Rows of a generator matrix of a binary linear [16, 6] code: any two of the 64 code words differ in
// at least 6 of the 16 signs, and in at least 2 of the first 8.
const generator = [0x6bc1, 0xd0c2, 0x3a84, 0xf948, 0x19d0, 0x95a0];
export const codeWords = 64;

/** Code word number `index` as 16 signs, each 1 or −1. Different code words have a dot product of at most 4. */
export function codeWord(index: number): number[] {
  let bits = 0;
  generator.forEach((row, i) => {
    if ((index >> i) & 1) bits ^= row;
  });
  return Array.from({ length: blockSize }, (_, i) => ((bits >> i) & 1 ? -1 : 1));
}

/** FNV-1a, 32 bits. */
function hash(text: string): number {
  let h = 0x811c9dc5;
  for (let i = 0; i < text.length; i += 1) h = Math.imul(h ^ text.charCodeAt(i), 0x01000193);
  return h >>> 0;
}

/**
 * A code word number for each key; equal keys have equal numbers. The number is the key's hash modulo 64, or after a
 * collision the next free number. It depends only on this key and earlier keys, so editing a token changes no code
 * before it.
 */
export function assignCodes(keys: readonly string[]): number[] {
  const taken = new Map<number, string>();
  return keys.map((key) => {
    let index = hash(key) % codeWords;
    for (let tries = 0; tries < codeWords; tries += 1) {
      const owner = taken.get(index);
      if (owner === undefined || owner === key) break;
      index = (index + 1) % codeWords;
    }
    taken.set(index, key);
    return index;
  });
}

/** The first letter, without its accent and case. */
export function firstLetter(token: string): string {
  return [...identityOf(token).normalize('NFD')][0] ?? '';
}

const listed = (words: string) => {
  const set = new Set(words.split(' '));
  return (token: string) => Number(set.has(identityOf(token)));
};
const spelled = (pattern: RegExp) => (token: string) => Number(pattern.test(token));

const kinds: readonly { name: string; of: (token: string) => number }[] = [
  { name: 'constant 1', of: () => 1 },
  { name: 'length ÷ 10', of: (token) => Math.min([...token].length, 20) / 10 },
  { name: 'starts with a capital', of: spelled(/^\p{Lu}/u) },
  { name: 'has a digit', of: spelled(/\p{N}/u) },
  { name: 'is punctuation', of: spelled(/^[^\p{L}\p{M}\p{N}]+$/u) },
  { name: 'article', of: listed('the a an') },
  { name: 'preposition', of: listed('by on in at of to from with over under for into near') },
  { name: 'pronoun', of: listed('i you he she it we they me him her us them who that this') },
  { name: 'possessive', of: listed('my your his her its our their whose') },
  { name: 'form of to be', of: listed('am is are was were be been being') },
  { name: 'joining word', of: listed('and or but because while if when that') },
  { name: 'negation', of: listed("not no never nor don't isn't wasn't") },
  { name: 'ends in -s', of: spelled(/\p{L}s$/iu) },
  { name: 'ends in -ed', of: spelled(/\p{L}ed$/iu) },
  { name: 'ends in -ing', of: spelled(/\p{L}ing$/iu) },
  { name: 'ends in -ly', of: spelled(/\p{L}ly$/iu) },
];

export function featureName(index: number): string {
  const { name, start } = blocks[Math.floor(index / blockSize)]!;
  const i = index - start;
  if (name === 'position') {
    return `position, ${i % 2 ? 'cos' : 'sin'} at ${speeds[i >> 1]!.toFixed(2)} radians a token`;
  }
  if (name === 'kind') return `kind, ${kinds[i]!.name}`;
  return `${name} code, sign ${i + 1} of ${blockSize}`;
}

/** Returns x, row-major (tokens, 64). */
export function embed(tokens: readonly string[]): Float32Array<ArrayBuffer> {
  const words = assignCodes(tokens.map(identityOf));
  const letters = assignCodes(tokens.map(firstLetter));
  const x = new Float32Array(tokens.length * embedDim);
  tokens.forEach((token, i) => {
    const row = [...positionCode(i), ...codeWord(words[i]!), ...codeWord(letters[i]!), ...kinds.map((kind) => kind.of(token))];
    x.set(row, i * embedDim);
  });
  return x;
}
