import { describe, expect, it } from 'vitest';
import { wordsFor } from '../../src/page/failure.js';

describe('failure', () => {
  it('says what a visitor can do, not what a programmer can', () => {
    const reason = 'WebAssembly SIMD is missing: multihead needs a browser of 2023 or later, or Node 20.19';
    const text = wordsFor({ kind: 'failed', reason, argument: 'WebAssembly' }, false).join('');
    expect(text).toMatch(/SIMD is missing in this browser/);
    expect(text).not.toMatch(/Node/);
  });

  it('does not say that there are no numbers where old ones stay', () => {
    const trouble = { kind: 'failed', reason: 'out of memory.' } as const;
    expect(wordsFor(trouble, false)[0]).toMatch(/no numbers/);
    expect(wordsFor(trouble, true).join('')).toMatch(/numbers below are older.* out of memory\.$/);
  });
});
