import { describe, expect, it } from 'vitest';
import { wordsFor } from '../../src/page/failure.js';

describe('failure', () => {
  it('says what a visitor can do, not what a programmer can', () => {
    const message = 'WebAssembly SIMD is missing: multihead needs a browser of 2023 or later, or Node 20.19';
    const text = wordsFor({ kind: 'failed', why: { code: 'E_LOAD', argument: 'WebAssembly', message } }, false).join('');
    expect(text).toMatch(/lacks WebAssembly SIMD/);
    expect(text).not.toMatch(/Node|Reloading/);
    const missing = { code: 'E_LOAD', argument: 'wasm', message: 'This page was updated. Reload it.' } as const;
    expect(wordsFor({ kind: 'failed', why: missing }, false).join('')).toMatch(/no numbers to show\. This page was updated\. Reload it\.$/);
  });

  it('does not say that there are no numbers where old ones stay', () => {
    const trouble = { kind: 'failed', why: { message: 'out of memory.' } } as const;
    expect(wordsFor(trouble, false)[0]).toMatch(/no numbers/);
    expect(wordsFor(trouble, true).join('')).toMatch(/numbers below are older.* out of memory\. Reloading/);
  });
});
