import { describe, expect, it } from 'vitest';
import { labelOf } from '../../src/model/labels.js';

describe('labelOf', () => {
  it.each([
    ['Ġcat', ' cat', '·cat'],
    ['cat', 'cat', 'cat'],
    ['▁cat', 'cat', '·cat'],
    ['▁', '', '·'],
    ['##ing', '##ing', '##ing'],
    ['[CLS]', '', '[CLS]'],
    ['Ã©', 'é', 'é'],
    ['Ã', '\ufffd', '⟨C3⟩'],
    ['ĠâĢ', ' \ufffd', '·⟨E2 80⟩'],
    ['<0xE2>', '\ufffd', '⟨E2⟩'],
    [undefined, '\ufffd', '⟨part of a character⟩'],
    ['Ċ', '\n', '⏎'],
    [undefined, ' mat', '·mat'],
    [undefined, '', 'token 7'],
  ])('writes %j, which means %j, as %j', (spelled, decoded, label) => {
    expect(labelOf(7, decoded, spelled)).toBe(label);
  });

  it('is short, and without control characters', () => {
    expect(labelOf(1, `x\u202e${'y'.repeat(1e6)}`)).toMatch(/^x\\u202ey{38}…$/);
  });
});
