import { load } from 'multihead';
import { beforeAll, describe, expect, it } from 'vitest';
import { unbent, type Bend } from '../../src/attention/bend.js';
import { createForward } from '../../src/attention/forward.js';
import type { ForwardInput, ForwardResult } from '../../src/attention/messages.js';
import { presets } from '../../src/attention/presets.js';
import { captionOf } from '../../src/sections/sentence/looks.js';

const preset = presets[0]!;
let forward: (input: ForwardInput) => ForwardResult;
beforeAll(async () => {
  forward = createForward(await load());
});

function captionFrom(query: number, bend: Partial<Bend> = {}, change: Partial<ForwardInput> = {}): string {
  const { heads, causal, text } = preset;
  const result = forward({ tokens: text.split(' '), heads, causal, bend: { ...unbent, ...bend }, ...change });
  return captionOf(result, query, text);
}

describe('captionOf', () => {
  it('has the line of an example only for its word, heads and mask, and with nothing bent', () => {
    const other = /^From “dog₇”: /;
    expect(captionFrom(6)).toBe(preset.line);
    expect(captionFrom(6, { muted: [2] })).toMatch(other);
    expect(captionFrom(6, { temperature: 2 })).toMatch(other);
    expect(captionFrom(6, { edits: [{ head: 0, query: 1, key: 0, weight: 0.5 }] })).toMatch(other);
    expect(captionFrom(6, {}, { causal: true })).toMatch(other);
    expect(captionFrom(6, {}, { heads: ['previous', 'first'] })).toMatch(other);
    expect(captionFrom(3)).toMatch(/^From “dog₄”: /);
  });

  it('says where the heads look, those with the same place together', () => {
    expect(captionFrom(1)).toBe('From “saw”: heads 1 and 2 look at “I”, head 3 at itself, head 4 at several words.');
    expect(captionFrom(0, {}, { heads: ['previous', 'first', 'same'] })).toBe('From “I”: heads 1, 2 and 3 look at itself.');
    expect(captionFrom(3, {}, { heads: ['same'] })).toBe('From “dog₄”: head 1 looks at “dog₇”.');
    expect(captionFrom(6, { edits: [{ head: 0, query: 6, key: 1, weight: 1 }] })).toMatch(/^From “dog₇”: head 1 looks at “saw”, head 2 at “I”,/);
  });

  it('names muted heads last', () => {
    expect(captionFrom(1, { muted: [0] })).toBe('From “saw”: head 2 looks at “I”, head 3 at itself, head 4 at several words, head 1 is muted.');
    expect(captionFrom(1, { muted: [0, 1, 2, 3] })).toBe('From “saw”: heads 1, 2, 3 and 4 are muted.');
  });
});
