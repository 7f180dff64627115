import { describe, expect, it } from 'vitest';
import { weightsFor } from '../../src/model/weights.js';

describe('weightsFor', () => {
  it('takes int8 for models above 100 MB, and what the visitor chooses', () => {
    expect([99e6, 100e6, 101e6].map((bytes) => weightsFor('auto', bytes))).toEqual([undefined, undefined, 'int8']);
    expect(weightsFor('f16', 5e9)).toBe('f16');
    expect(weightsFor('int4', 10)).toBe('int4');
  });
});
