// A vocabulary of byte pairs (arXiv:1508.07909), with the bytes and the cutting of text into words of GPT-2, as tokenizer.json.

/** GPT-2's characters for the 256 bytes: printable ones stand for themselves. */
const CHARACTERS = (() => {
  const isPrintable = (byte) => (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  let other = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isPrintable(byte) ? byte : other++));
})();
const WORD = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;

/** The words of a text as characters of bytes. */
const wordsOf = (text) => (text.match(WORD) ?? []).map((word) => [...Buffer.from(word)].map((byte) => CHARACTERS[byte]).join(''));

/** The text that a model reads: every paragraph begins with a space, like a word inside of it, and ends with a line break. */
export const joined = (paragraphs) => paragraphs.map((paragraph) => ` ${paragraph}\n`).join('');

/**
 * Merges the pair that occurs most often, the first in order among equals, until there are `size` tokens.
 * @param {string} text
 * @param {number} size
 * @returns {{ tokens: string[], merges: [string, string][] }}
 */
export function learnPairs(text, size) {
  const counts = new Map();
  for (const word of wordsOf(text)) counts.set(word, (counts.get(word) ?? 0) + 1);
  const words = [...counts].map(([word, count]) => ({ parts: [...word], count }));
  const tokens = [...CHARACTERS];
  const merges = [];
  const pairs = new Map(); // "left right" → how often it occurs, and the words where it does
  const count = (word, sign) => {
    for (let i = 1; i < word.parts.length; i += 1) {
      const name = `${word.parts[i - 1]} ${word.parts[i]}`;
      const pair = pairs.get(name) ?? { count: 0, words: new Set() };
      pair.count += sign * word.count;
      if (sign > 0) pair.words.add(word);
      pairs.set(name, pair);
    }
  };
  for (const word of words) count(word, 1);
  while (tokens.length < size) {
    let best = '';
    let most = 1;
    for (const [name, { count: of }] of pairs) {
      if (of > most || (of === most && best !== '' && name < best)) [best, most] = [name, of];
    }
    if (best === '') break;
    const [left, right] = best.split(' ');
    merges.push([left, right]);
    tokens.push(left + right);
    const { words: changed } = pairs.get(best);
    for (const word of changed) {
      count(word, -1);
      word.parts = merged(word.parts, left, right);
      count(word, 1);
    }
    pairs.delete(best);
  }
  return { tokens, merges };
}

function merged(parts, left, right) {
  const after = [];
  for (let i = 0; i < parts.length; i += 1) {
    const isPair = parts[i] === left && parts[i + 1] === right;
    after.push(isPair ? left + right : parts[i]);
    if (isPair) i += 1;
  }
  return after;
}

/** The contents of tokenizer.json. */
export const tokenizerOf = ({ tokens, merges }) => ({
  version: '1.0',
  truncation: null,
  padding: null,
  added_tokens: [],
  normalizer: null,
  pre_tokenizer: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
  post_processor: null,
  decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
  model: {
    type: 'BPE',
    dropout: null,
    unk_token: null,
    continuing_subword_prefix: null,
    end_of_word_suffix: null,
    fuse_unk: false,
    byte_fallback: false,
    ignore_merges: false,
    vocab: Object.fromEntries(tokens.map((token, id) => [token, id])),
    merges: merges.map((pair) => pair.join(' ')),
  },
});

/**
 * The tokens of a text. The package's tokenizer gives the same ones, but keeps no word that it has cut.
 * @param {string} text
 */
export function encoded(text, { tokens, merges }) {
  const ids = new Map(tokens.map((token, id) => [token, id]));
  const ranks = new Map(merges.map((pair, rank) => [pair.join(' '), rank]));
  const known = new Map();
  const ofWord = (word) => {
    let parts = [...word];
    for (;;) {
      let best = Infinity;
      for (let i = 1; i < parts.length; i += 1) best = Math.min(best, ranks.get(`${parts[i - 1]} ${parts[i]}`) ?? Infinity);
      if (best === Infinity) return parts.map((part) => ids.get(part));
      parts = merged(parts, ...merges[best]);
    }
  };
  const all = [];
  for (const word of wordsOf(text)) {
    if (!known.has(word)) known.set(word, ofWord(word));
    all.push(...known.get(word));
  }
  return Int32Array.from(all);
}
