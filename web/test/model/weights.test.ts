import { describe, expect, it } from 'vitest';
import { bytesAs, weightsFor } from '../../src/model/weights.js';

describe('weightsFor', () => {
  it('takes int8 for models above 100 MB, and what the visitor chooses', () => {
    expect([99e6, 100e6, 101e6].map((bytes) => weightsFor('auto', bytes))).toEqual([undefined, undefined, 'int8']);
    expect(weightsFor('f16', 5e9)).toBe('f16');
    expect(weightsFor('int4', 10)).toBe('int4');
  });

  it('takes memory by its type', () => {
    expect([bytesAs('auto', 50e6), bytesAs('auto', 1e9), bytesAs('f32', 1e9), bytesAs('int4', 1e9)]).toEqual([50e6, 0.55e9, 2e9, 0.3e9]);
  });
});
