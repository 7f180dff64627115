// Checks the lines of the presets against the weights of their heads.

import { describe, expect, it } from 'vitest';
import type { PatternId } from '../../src/attention/patterns.js';
import { presets, type Preset } from '../../src/attention/presets.js';
import { tokenize, tokenNames } from '../../src/attention/tokens.js';
import { weightsOf } from './weights.js';

const namesIn = ({ text }: Preset) => tokenNames(tokenize(text).tokens);
const rowOf = ({ text, causal, query }: Preset, head: PatternId) => weightsOf(head, tokenize(text).tokens, causal)[query]!;
const strongest = (preset: Preset, head: PatternId) => {
  const row = rowOf(preset, head);
  return namesIn(preset)[row.indexOf(Math.max(...row))];
};
const weight = (preset: Preset, head: PatternId, name: string) => rowOf(preset, head)[namesIn(preset).indexOf(name)];
const [opening, bank, black, football, fish, next] = presets as [Preset, Preset, Preset, Preset, Preset, Preset];

describe('presets', () => {
  it.each(presets.map((preset) => [preset.text, preset] as const))('%s: names only its own words', (_, preset) => {
    const names = namesIn(preset);
    for (const name of preset.line.match(/\p{L}+[₀-₉]+/gu) ?? []) expect(names).toContain(name);
    expect(names[preset.query]).toBeDefined();
    expect(new Set(preset.heads).size).toBe(4);
  });

  it('opens on a sentence where four heads look at four words', () => {
    expect(opening.heads.map((head) => strongest(opening, head))).toEqual(['the₆', 'I', 'dog₄', 'dog₇']);
  });

  it('says that bank does not find its meaning, and it does not', () => {
    expect(namesIn(bank)[bank.query]).toBe('bank');
    expect(bank.line).toMatch(/must be trained on a lot of text/);
    for (const head of bank.heads) expect(['river', 'loan']).not.toContain(strongest(bank, head));
  });

  it('says what the other heads do, and they do it', () => {
    expect(strongest(black, 'same')).toBe('the₁');
    expect(football.causal).toBe(true);
    for (const head of football.heads) expect(weight(football, head, 'football')).toBe(0);
    expect(weight(football, 'average', 'He')).toBeCloseTo(1 / 3, 5);
    for (const name of ['The₁', 'the₇']) expect(weight(fish, 'same', name)).toBeGreaterThan(0.15);
    expect(weight(fish, 'same', 'that')).toBeLessThan(0.01);
    expect(weight(fish, 'letter', 'that')).toBeCloseTo(weight(fish, 'letter', 'the₇')!, 5);
    expect(namesIn(next)[next.query]).toBe('the₅');
  });
});
