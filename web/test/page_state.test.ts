import { describe, expect, it } from 'vitest';
import { defaults, fromHash, toHash, type PageState } from '../src/page_state.js';

describe('the address', () => {
  it('is empty for the defaults', () => {
    expect(toHash(defaults)).toBe('');
    for (const hash of ['', '#']) expect(fromHash(hash)).toEqual({ state: defaults, broken: [] });
  });

  it('restores every field', () => {
    const states: PageState[] = [
      {
        text: 'A & b = "c"? 猫 50% #1 +1',
        heads: ['itself', 'first'],
        causal: true,
        step: 'output',
        head: 1,
      },
      { ...defaults, text: '' },
      { ...defaults, causal: true },
    ];
    for (const state of states) expect(fromHash(`#${toHash(state)}`)).toEqual({ state, broken: [] });
  });

  it.each([
    ['causal', 'causal=yes'],
    ['heads', 'heads=previous.nonsense'],
    ['heads', 'heads='],
    ['heads', 'heads=first.first'],
    ['step', 'step=42'],
    ['head', 'head=0'],
    ['head', 'head=9'],
    ['head', 'head=1e1'],
    ['text', `text=${'a'.repeat(3000)}`],
    ['constructor', 'constructor=1'],
    ['colour', 'colour=red'],
  ])('gives defaults for a broken %s and names it', (name, hash) => {
    expect(fromHash(`#${hash}`)).toEqual({ state: defaults, broken: [name] });
  });

  it('accepts invalid percent-encoding', () => {
    expect(fromHash('#%E0%A4%A').state).toEqual(defaults);
    expect(fromHash('#%E0%A4%A').broken).toHaveLength(1);
  });

  it('keeps the valid fields', () => {
    const { state, broken } = fromHash('#text=hi&causal=2&head=2');
    expect(state).toEqual({ ...defaults, text: 'hi', head: 1 });
    expect(broken).toEqual(['causal']);
  });

  it('checks the index of the head against the heads in the same address', () => {
    expect(fromHash('#heads=first&head=2').broken).toEqual(['head']);
  });
});
