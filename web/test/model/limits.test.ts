import { describe, expect, it } from 'vitest';
import { mostBytes, refusalOf } from '../../src/model/limits.js';

describe('refusalOf', () => {
  it('names the file, its size and the limit', () => {
    expect(refusalOf({ name: 'big.safetensors', size: 6.4e9 })).toBe(
      'big.safetensors has 6.40 GB; at most 1.50 GB fit in a page.',
    );
    const huge = { name: `a\n\u202e${'b'.repeat(1000)}`, size: 6.4e9 };
    expect(refusalOf(huge)).toMatch(/^a\\u000a\\u202eb{77}… has 6\.40 GB/);
    expect(refusalOf({ name: 'fits.safetensors', size: mostBytes })).toBe('');
  });
});
