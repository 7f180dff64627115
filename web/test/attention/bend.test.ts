import { describe, expect, it } from 'vitest';
import { editedRow, fitting, hides, isUnbent, unbent } from '../../src/attention/bend.js';

const nothingHidden = () => false;

describe('editedRow', () => {
  it('keeps the set weight, and the proportions of the others', () => {
    expect(editedRow([0.5, 0.3, 0.2], new Map([[0, 0.2]]), nothingHidden)).toEqual([0.2, expect.closeTo(0.48), expect.closeTo(0.32)]);
  });

  it('leaves hidden keys at 0', () => {
    expect(editedRow([0.5, 0.5, 0], new Map([[0, 0.1]]), (key) => key === 2)).toEqual([0.1, 0.9, 0]);
  });

  it('shares equally if the others are practically 0', () => {
    expect(editedRow([1, 1e-9, 2e-9], new Map([[0, 0.5]]), nothingHidden)).toEqual([0.5, 0.25, 0.25]);
  });

  it.each<[string, Map<number, number>, number[]]>([
    [
      'more than 1',
      new Map([
        [0, 1],
        [1, 0.6],
      ]),
      [0.625, 0.375, 0],
    ],
    [
      'the whole row',
      new Map([
        [0, 0.1],
        [1, 0.1],
        [2, 0.3],
      ]),
      [0.2, 0.2, 0.6],
    ],
    [
      'a whole row of 0',
      new Map([
        [0, 0],
        [1, 0],
        [2, 0],
      ]),
      [1 / 3, 1 / 3, 1 / 3],
    ],
  ])('divides set weights by their sum if they are %s', (_, set, row) => {
    editedRow([0.2, 0.3, 0.5], set, nothingHidden).forEach((weight, i) => expect(weight).toBeCloseTo(row[i]!, 12));
  });
});

describe('hides', () => {
  it('hides later keys if causal, and keys outside the window', () => {
    const seen = (causal: boolean, window: number) => [0, 1, 2, 3, 4].filter((key) => !hides(causal, window, 2, key));
    expect(seen(false, -1)).toEqual([0, 1, 2, 3, 4]);
    expect(seen(true, -1)).toEqual([0, 1, 2]);
    expect(seen(false, 1)).toEqual([1, 2, 3]);
    expect(seen(true, 0)).toEqual([2]);
  });
});

describe('fitting', () => {
  it('drops edits outside the sentence, of missing heads, and of hidden keys', () => {
    const edit = { head: 0, query: 1, key: 1, weight: 0.5 };
    const edits = [edit, { ...edit, head: 2 }, { ...edit, query: 4 }, { ...edit, key: 3 }];
    expect(fitting({ ...unbent, edits }, true, 4, 2)).toEqual([edit]);
  });
});

describe('isUnbent', () => {
  it('is true only with every default', () => {
    expect(isUnbent({ ...unbent })).toBe(true);
    expect(isUnbent({ ...unbent, muted: [1] })).toBe(false);
  });
});
