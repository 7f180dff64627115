import { describe, expect, it } from 'vitest';
import { bytePairs, wordNumbers } from '../../src/model/tokenizers.js';

// Bytes as GPT-2 writes them: Ġ is the space, Ã© are the two bytes of é.
const letters = ['t', 'h', 'e', 'c', 'a', 'Ġ', '!', "'", 's', 'Ã', '©', '1'];
const merges = ['#version: 0.2', 't h', 'th e', 'Ġ c', 'a t', 'Ġc at', 'Ã ©'];
const tokens = [...letters, 'th', 'the', 'Ġc', 'at', 'Ġcat', 'Ã©'];
const vocabulary = JSON.stringify(Object.fromEntries(tokens.map((token, id) => [token, id])));
const tokenizer = bytePairs(vocabulary, merges.join('\n'), tokens.length);
const labels = (text: string) => tokenizer.encode(text).labels;

describe('byte pairs', () => {
  it('merges in the order of the list, and keeps the space before a word', () => {
    expect(labels('the cat')).toEqual(['the', '·cat']);
    expect(labels('tthe')).toEqual(['t', 'the']);
    expect(labels('cat')).toEqual(['c', 'at']);
  });

  it('cuts words, numbers, marks and contractions apart before it merges', () => {
    expect(labels("the's!1")).toEqual(['the', "'", 's', '!', '1']);
    expect(labels('the  cat')).toEqual(['the', '·', '·cat']);
  });

  it('encodes any script by its bytes', () => {
    expect(labels('é')).toEqual(['é']);
    expect(tokenizer.encode('é').ids).toEqual([tokens.indexOf('Ã©')]);
    expect(tokenizer.label(tokens.indexOf('Ġcat'))).toBe('·cat');
  });

  it('says what is wrong with its files', () => {
    expect(() => bytePairs('{', '', 9)).toThrow(/vocab\.json is not valid JSON/);
    expect(() => bytePairs('[1]', '', 9)).toThrow(/not an object/);
    expect(() => bytePairs('{"a": -1}', '', 9)).toThrow(/gives "a" no number/);
    expect(() => bytePairs('{"a": 9}', '', 9)).toThrow(/up to 9; the model has only 9/);
    expect(() => tokenizer.encode('x')).toThrow(/no token "x"/);
  });

  it('shows names of its files shortened and escaped', () => {
    const huge = `x\n\u202e${'y'.repeat(1_000_000)}`;
    const message = (call: () => unknown): string => {
      try {
        call();
      } catch (error) {
        return (error as Error).message;
      }
      return '';
    };
    const wrong = message(() => bytePairs(JSON.stringify({ [huge]: -1 }), '', 9));
    expect(wrong).toMatch(/^vocab\.json gives "x\\n\\u202ey{77}…" no number\.$/);
    const missing = message(() => bytePairs('{"a": 0}', '', 9).encode('\u202e\x1b'));
    expect(missing).toMatch(/^vocab\.json has no token "[^\p{Cc}\u202e]*"\.$/u);
    expect(bytePairs(JSON.stringify({ [huge]: 3 }), '', 9).label(3).length).toBeLessThan(300);
  });
});

describe('numbers of words', () => {
  it('are equal for equal words, and below the size of the vocabulary', () => {
    const words = wordNumbers(3);
    const { ids, labels: names } = words.encode('The cat and the dog sat');
    expect(ids).toEqual([0, 1, 2, 0, 0, 1]);
    expect(names).toEqual(['The', 'cat', 'and', 'the', 'dog', 'sat']);
    expect([words.label(1), words.label(99)]).toEqual(['cat', 'token 99']);
  });
});
