import { describe, expect, it } from 'vitest';
import { identityOf, maxTokens, presets, tellingToken, tokenise } from '../src/tokens.js';

const tokens = (text: string) => tokenise(text).tokens;

describe('tokenise', () => {
  it('finds words and punctuation marks', () => {
    expect(tokens('The cat, she said, sat.')).toEqual(['The', 'cat', ',', 'she', 'said', ',', 'sat', '.']);
    expect(tokens("don't re-use 3rd-party ’til")).toEqual(["don't", 're-use', '3rd-party', '’', 'til']);
    expect(tokens('(a) — b…')).toEqual(['(', 'a', ')', '—', 'b', '…']);
  });

  it('keeps letters of every script together', () => {
    expect(tokens('Ça va? Ünïcödé кот наб')).toEqual(['Ça', 'va', '?', 'Ünïcödé', 'кот', 'наб']);
    expect(tokens('e\u0301te\u0301')).toEqual(['e\u0301te\u0301']);
    expect(tokens('猫がすわる')).toEqual(['猫', 'が', 'す', 'わ', 'る']);
    expect(tokens('cat猫')).toEqual(['cat', '猫']);
  });

  it('keeps an emoji whole', () => {
    expect(tokens('hi 👩‍💻👍🏽!')).toEqual(['hi', '👩‍💻', '👍🏽', '!']);
  });

  it('finds no tokens in blank text', () => {
    for (const text of ['', '   \n\t', '\u200b\u00ad']) expect(tokens(text)).toEqual([]);
  });

  it(`cuts after ${maxTokens} and reports it`, () => {
    const { tokens: kept, found } = tokenise('word '.repeat(100));
    expect([kept.length, found]).toEqual([maxTokens, 100]);
    expect(tokenise('word '.repeat(maxTokens)).found).toBe(maxTokens);
  });

  it('splits the presets into words', () => {
    expect(presets.map((text) => tokens(text).length)).toEqual([8, 7, 4, 11, 5]);
  });
});

describe('identityOf', () => {
  it('ignores case and width', () => {
    expect(identityOf('The')).toBe(identityOf('the'));
    expect(identityOf('ＴＨＥ')).toBe('the');
    expect(identityOf('cat')).not.toBe(identityOf('cats'));
  });
});

describe('tellingToken', () => {
  it('is the last repeated word, or the last word', () => {
    expect(tellingToken(tokens(presets[1]!))).toBe(5);
    expect(tellingToken(tokens(presets[2]!))).toBe(3);
  });
});
