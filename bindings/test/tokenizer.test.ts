// The text of tokens that come one after another, for tokenizers of every kind of decoder.

import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { Tokenizer } from '@huggingface/tokenizers';
import type { TextTokenizer } from 'multihead/models';
import { describe, expect, it } from 'vitest';
import { encodeText, textOf, TextStream } from '../src/models/tokenizer.ts';
import { random } from './random.ts';

/** Pieces with a space in front, without one, and such as a tokenizer's clean-up joins with the text before. */
const pieces = ['said', 'a', 'n', 's', 't', "'", "'s", "n't", 're', 've', 'm', '.', ',', '?', '!', 'é', '中', '😀'];
const special = ['<unk>', '<s>', '</s>'];
const bytes = Array.from({ length: 256 }, (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`);

function tokenizerOf(model: object, tokens: readonly string[], decoder: object | null): TextTokenizer {
  const added = special.map((content, id) => ({ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true }));
  const vocab = Object.fromEntries(tokens.map((token, id) => [token, id]));
  const json = {
    version: '1.0',
    added_tokens: added,
    normalizer: null,
    pre_tokenizer: null,
    post_processor: null,
    decoder,
    model: { unk_token: '<unk>', vocab, ...model },
  };
  return new Tokenizer(json, {});
}

const marked = (mark: string) => [...special, ...pieces, ...pieces.map((piece) => mark + piece)];
const bpe = { type: 'BPE', merges: [] };
const sentencePiece = [...marked('▁'), '▁', '▁▁'];
const wordPiece = [...special, ...pieces, ...pieces.map((piece) => `##${piece}`)];
const suffixed = [...special, ...pieces, ...pieces.map((piece) => `${piece}</w>`)];
const llama = [
  { type: 'Replace', pattern: { String: '▁' }, content: ' ' },
  { type: 'ByteFallback' },
  { type: 'Fuse' },
  { type: 'Strip', content: ' ', start: 1, stop: 0 },
];
const english = JSON.parse(readFileSync(fileURLToPath(new URL('../../web/public/english/tokenizer.json', import.meta.url)), 'utf8')) as object;

const kinds: Record<string, [tokenizer: TextTokenizer, size: number]> = {
  'byte level': [new Tokenizer(english, {}), 2048],
  'byte level with a suffix': [tokenizerOf({ ...bpe, end_of_word_suffix: '</w>' }, suffixed.slice(0, -1), { type: 'ByteLevel' }), 20],
  'byte fallback': [
    tokenizerOf({ ...bpe, byte_fallback: true }, [...sentencePiece, ...bytes], { type: 'Sequence', decoders: llama }),
    sentencePiece.length + 256,
  ],
  metaspace: [
    tokenizerOf({ type: 'Unigram', unk_id: 0, vocab: sentencePiece.map((token) => [token, -1]) }, [], { type: 'Metaspace', replacement: '▁' }),
    sentencePiece.length,
  ],
  WordPiece: [
    tokenizerOf({ type: 'WordPiece', continuing_subword_prefix: '##' }, wordPiece, { type: 'WordPiece', prefix: '##', cleanup: false }),
    wordPiece.length,
  ],
  'WordPiece with clean-up': [
    tokenizerOf({ type: 'WordPiece', continuing_subword_prefix: '##' }, wordPiece, { type: 'WordPiece', prefix: '##', cleanup: true }),
    wordPiece.length,
  ],
  'BPE with a suffix': [tokenizerOf({ ...bpe, end_of_word_suffix: '</w>' }, suffixed, { type: 'BPEDecoder', suffix: '</w>' }), suffixed.length],
  'no decoder': [tokenizerOf(bpe, wordPiece, null), wordPiece.length],
};

/** Random ids, half of them from a few, so that they meet often. */
function idsOf(seed: number, size: number): number[] {
  const r = random(seed);
  const few = Array.from({ length: 6 }, () => r.int(0, size - 1));
  return Array.from({ length: r.int(1, 40) }, () => (r.next() < 0.5 ? r.pick(few) : r.int(0, size - 1)));
}

function streamed(tokenizer: TextTokenizer, ids: readonly number[]): string {
  const stream = new TextStream(tokenizer);
  return ids.map((id) => stream.add(id)).join('') + stream.rest();
}

describe('the pieces of a text', () => {
  it.each(Object.keys(kinds))('joined are the text of all ids: %s', (kind) => {
    const [tokenizer, size] = kinds[kind] as (typeof kinds)[string];
    for (let seed = 0; seed < 200; seed += 1) {
      const ids = idsOf(seed, size);
      expect(streamed(tokenizer, ids), String(ids)).toBe(textOf(tokenizer, ids));
    }
  });

  it.each(['metaspace', 'WordPiece', 'no decoder'])('are so for a tokenizer that always cleans up: %s', (kind) => {
    const [tokenizer, size] = kinds[kind] as (typeof kinds)[string];
    const cleaning = { encode: () => ({ ids: [], tokens: [] }), decode: (ids: number[]) => tokenizer.decode(ids, { skip_special_tokens: true }) };
    for (let seed = 0; seed < 200; seed += 1) {
      const ids = idsOf(seed, size).filter((id) => !(sentencePiece[id] as string | undefined)?.endsWith('▁'));
      expect(streamed(cleaning, ids), String(ids)).toBe(textOf(cleaning, ids));
    }
  });

  it('keep the spaces that the tokens have', () => {
    const tokenizer = new Tokenizer(english, {});
    for (const text of [" x = ' ' .", " they ' re gone , said"]) {
      const { ids } = tokenizer.encode(text);
      expect(streamed(tokenizer, ids)).toBe(text);
      expect(textOf(tokenizer, ids)).toBe(text);
    }
  });
});

describe('special tokens', () => {
  const bos: TextTokenizer = {
    encode: (text, options = {}) => {
      const own = text.startsWith('<s>') ? [1, ...[...text.slice(3)].map(() => 9)] : [...text].map(() => 9);
      const ids = options.add_special_tokens === false ? own : [1, ...own, 2];
      return { ids, tokens: ids.map(String), token_type_ids: ids.map(() => 0) };
    },
    decode: () => '',
  };

  it('are left out, added, or added but for a first one that is there', () => {
    const idsWith = (text: string, addSpecialTokens?: boolean, causal = true) => encodeText(bos, text, { addSpecialTokens }, causal).ids;
    expect(idsWith('a')).toEqual([1, 9, 2]);
    expect(idsWith('a', true)).toEqual([1, 9, 2]);
    expect(idsWith('a', false)).toEqual([9]);
    expect(idsWith('<s>a')).toEqual([1, 9, 2]);
    expect(idsWith('<s><s>')).toEqual([1, 9, 9, 9, 2]);
    expect(idsWith('<s>a', true)).toEqual([1, 1, 9, 2]);
    expect(idsWith('<s>a', false)).toEqual([1, 9]);
    expect(idsWith('<s>a', undefined, false)).toEqual([1, 1, 9, 2]);
    expect(idsWith('aa', undefined)).toEqual([1, 9, 9, 2]);
  });

  it('leave a text alone that begins with a letter twice', () => {
    const end: TextTokenizer = {
      encode: (text, options = {}) => {
        const ids = [...[...text].map(() => 9), ...(options.add_special_tokens === false ? [] : [2])];
        return { ids, tokens: ids.map(String) };
      },
      decode: () => '',
    };
    for (const text of ['a', 'aa', 'aaa']) expect(encodeText(end, text, {}, true).ids).toEqual([...[...text].map(() => 9), 2]);
  });
});
