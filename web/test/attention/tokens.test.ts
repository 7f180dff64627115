import { describe, expect, it } from 'vitest';
import { presets } from '../../src/attention/presets.js';
import { directionOf, identityOf, maxTokens, defaultQuery, tokenize, tokenNames } from '../../src/attention/tokens.js';

const tokens = (text: string) => tokenize(text).tokens;

describe('tokenize', () => {
  it('finds words and punctuation marks', () => {
    expect(tokens('The cat, she said, sat.')).toEqual(['The', 'cat', ',', 'she', 'said', ',', 'sat', '.']);
    expect(tokens('(a) — b…')).toEqual(['(', 'a', ')', '—', 'b', '…']);
  });

  it('keeps contractions and hyphenated words together', () => {
    expect(tokens("don't re-use 3rd-party ’til")).toEqual(["don't", 're-use', '3rd-party', '’', 'til']);
    expect(tokens('Mr. Elton, Mrs. Dr. Xmr. Mr')).toEqual(['Mr.', 'Elton', ',', 'Mrs.', 'Dr.', 'Xmr', '.', 'Mr']);
    expect(tokens('well--no a- b -c state-of-the-art')).toEqual([...['well', '--', 'no', 'a', '-', 'b', '-', 'c', 'state-of-the-art']]);
  });

  it('keeps a number whole', () => {
    expect(tokens('3.14159 1,000 is 2.')).toEqual(['3.14159', '1,000', 'is', '2', '.']);
  });

  it('splits every script into words', () => {
    expect(tokens('Ça va? Ünïcödé кот наб')).toEqual(['Ça', 'va', '?', 'Ünïcödé', 'кот', 'наб']);
    expect(tokens('e\u0301te\u0301 x\u0302y')).toEqual(['\u00e9t\u00e9', 'x\u0302y']);
    expect(tokens('مرحبا بالعالم')).toEqual(['مرحبا', 'بالعالم']);
    expect(tokens('नमस्ते दुनिया')).toEqual(['नमस्ते', 'दुनिया']);
  });

  it('takes each sign of a script without spaces as a token: dictionaries differ between browsers', () => {
    expect(tokens('ฉันรักแมว')).toEqual(['ฉั', 'น', 'รั', 'ก', 'แ', 'ม', 'ว']);
    expect(tokens('猫がすわる。コーヒー')).toEqual([...'猫がすわる。コーヒー']);
    expect(tokens('猫cat3か月')).toEqual(['猫', 'cat3', 'か', '月']);
  });

  it('keeps dots inside of a word, and no dot at its end: segmenters of browsers differ', () => {
    expect(tokens('U.S.A. foo.bar x.y')).toEqual(['U.S.A', '.', 'foo.bar', 'x.y']);
    expect(tokens('a.b@c.de, e.g., 1.2.3')).toEqual(['a.b', '@', 'c.de', ',', 'e.g', '.', ',', '1.2.3']);
    expect(tokens('.a. ..b a,b 1,a')).toEqual(['.', 'a', '.', '.', '.', 'b', 'a', ',', 'b', '1', ',', 'a']);
  });

  it('keeps an emoji whole, a flag, a family and a skin tone too', () => {
    expect(tokens('hi 👩‍💻👍🏽!')).toEqual(['hi', '👩‍💻', '👍🏽', '!']);
    expect(tokens('🇫🇷🇩🇪 go')).toEqual(['🇫🇷', '🇩🇪', 'go']);
    expect(tokens('👨‍👩‍👧‍👦')).toHaveLength(1);
  });

  it('takes markup as text', () => {
    expect(tokens('<b>hi</b>')).toEqual(['<', 'b', '>', 'hi', '<', '/', 'b', '>']);
  });

  it('finds no tokens in blank text', () => {
    for (const text of ['', '   \n\t', '\u200b\u00ad', '\0']) expect(tokens(text)).toEqual([]);
  });

  it(`cuts after ${maxTokens} and reports it`, () => {
    const { tokens: kept, found } = tokenize('word '.repeat(100));
    expect([kept.length, found]).toEqual([maxTokens, 100]);
    expect(tokenize('word '.repeat(maxTokens)).found).toBe(maxTokens);
  });

  it('splits the presets into words', () => {
    expect(presets.map(({ text }) => tokens(text).length)).toEqual([8, 8, 7, 4, 11, 5]);
  });
});

describe('identityOf', () => {
  it('ignores case and width', () => {
    expect(identityOf('The')).toBe(identityOf('the'));
    expect(identityOf('ＴＨＥ')).toBe('the');
    expect(identityOf('cat')).not.toBe(identityOf('cats'));
  });
});

describe('tokenNames', () => {
  it('tells repeated words apart by their place', () => {
    expect(tokenNames(tokens('The cat sat on the mat'))).toEqual(['The₁', 'cat', 'sat', 'on', 'the₅', 'mat']);
    expect(tokenNames(tokens('a '.repeat(64))).at(-1)).toBe('a₆₄');
  });

  it('gives different names to all tokens', () => {
    for (const { text } of presets) {
      const names = tokenNames(tokens(text));
      expect(new Set(names.map((name) => name.toLowerCase())).size).toBe(names.length);
    }
  });
});

describe('defaultQuery', () => {
  it('is the last repeated word, or the last word', () => {
    expect(defaultQuery(tokens('the black cat sat on the mat'))).toBe(5);
    expect(defaultQuery(tokens('He is playing football'))).toBe(3);
  });

  it('is the word that the opening sentence explains', () => {
    expect(defaultQuery(tokens(presets[0]!.text))).toBe(presets[0]!.query);
  });
});

describe('directionOf', () => {
  it('is that of the first letter', () => {
    expect(directionOf(tokens('12 مرحبا world'))).toBe('rtl');
    expect(directionOf(tokens('hello שלום'))).toBe('ltr');
    expect(directionOf(tokens('12, 🇫🇷'))).toBe('ltr');
  });
});
