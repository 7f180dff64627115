// From text to token ids for a model that the visitor brought: byte-pair encoding with GPT-2's vocab.json and
// merges.txt (Sennrich et al. 2016; Radford et al. 2019), or a number for each different word.

import { quoted } from '../../../bindings/src/runtime/text.js';
import { identityOf, tokenize } from '../attention/tokens.js';
import { mergePairs } from './merge_pairs.js';

export interface Encoded {
  readonly ids: readonly number[];
  /** The text of each token; "·" stands for a space. */
  readonly labels: readonly string[];
}

export interface Tokenizer {
  readonly kind: 'byte pairs' | 'words';
  encode(text: string): Encoded;
  /** The text of a token that the model chose. */
  label(id: number): string;
}

/**
 * GPT-2 writes each byte as a printable character: itself if it is one, else the next free character from U+0100 on.
 */
const byteToLetter: readonly string[] = (() => {
  let free = 256;
  return Array.from({ length: 256 }, (_, byte) => {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte !== 173);
    return String.fromCodePoint(printable ? byte : free++);
  });
})();
const letterToByte = new Map(byteToLetter.map((letter, byte) => [letter, byte]));

/** GPT-2 cuts a text into these parts before it merges: contractions, words, numbers and marks, each with the space before it. */
const pieces = /'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;

/** The longest tokens of GPT-2's vocabulary have 128 letters; a token of a damaged file may have millions. */
const mostLetters = 256;

function textOf(token: string): string {
  const bytes = [...token.slice(0, mostLetters)].map((letter) => letterToByte.get(letter) ?? 63);
  return new TextDecoder().decode(Uint8Array.from(bytes)).replaceAll(' ', '·').replaceAll('\n', '⏎');
}

function readVocabulary(json: string): Map<string, number> {
  let parsed: unknown;
  try {
    parsed = JSON.parse(json);
  } catch {
    throw new Error('vocab.json is not valid JSON.');
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) {
    throw new Error('vocab.json is not an object of tokens and their numbers.');
  }
  const entries = Object.entries(parsed as Record<string, unknown>);
  const wrong = entries.find(([, id]) => !Number.isInteger(id) || (id as number) < 0);
  if (wrong) throw new Error(`vocab.json gives ${quoted(wrong[0])} no number.`);
  return new Map(entries as [string, number][]);
}

export function bytePairs(vocabJson: string, mergesText: string, vocabSize: number): Tokenizer {
  const vocabulary = readVocabulary(vocabJson);
  const largest = [...vocabulary.values()].reduce((most, id) => Math.max(most, id), -1);
  if (largest >= vocabSize) {
    throw new Error(`vocab.json numbers its tokens up to ${largest}; the model has only ${vocabSize}.`);
  }
  const ranks = new Map<string, number>();
  for (const line of mergesText.split(/\r?\n/)) {
    if (line !== '' && !line.startsWith('#version')) ranks.set(line, ranks.size);
  }
  const texts = new Map([...vocabulary].map(([token, id]) => [id, textOf(token)]));

  const merged = (piece: string): string[] => {
    const letters = [...new TextEncoder().encode(piece)].map((byte) => byteToLetter[byte]!);
    return mergePairs(letters, (left, right) => ranks.get(`${left} ${right}`));
  };

  return {
    kind: 'byte pairs',
    encode(text) {
      const tokens = (text.match(pieces) ?? []).flatMap(merged);
      const missing = tokens.find((token) => !vocabulary.has(token));
      if (missing !== undefined) throw new Error(`vocab.json has no token ${quoted(textOf(missing))}.`);
      return { ids: tokens.map((token) => vocabulary.get(token)!), labels: tokens.map(textOf) };
    },
    label: (id) => texts.get(id) ?? `token ${id}`,
  };
}

/** Numbers the different words of a text in their order. The model knows nothing of these words. */
export function wordNumbers(vocabSize: number): Tokenizer {
  let words: string[] = [];
  return {
    kind: 'words',
    encode(text) {
      const { tokens } = tokenize(text);
      const known = new Map<string, number>();
      const ids = tokens.map((token) => {
        const word = identityOf(token);
        if (!known.has(word)) known.set(word, known.size % vocabSize);
        return known.get(word)!;
      });
      words = [...known.keys()];
      return { ids, labels: tokens };
    },
    label: (id) => words[id] ?? `token ${id}`,
  };
}
