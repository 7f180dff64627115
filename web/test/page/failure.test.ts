import { describe, expect, it } from 'vitest';
import { wordsFor } from '../../src/page/failure.js';

describe('failure', () => {
  it('says what a visitor can do, not what a programmer can', () => {
    const reason = 'WebAssembly SIMD is missing: multihead needs a browser of 2023 or later, or Node 20.19';
    const text = wordsFor({ kind: 'failed', reason, argument: 'WebAssembly' }, false).join('');
    expect(text).toMatch(/lacks WebAssembly SIMD/);
    expect(text).not.toMatch(/Node|Reloading/);
    const missing = 'cannot load relaxed.wasm: HTTP status 404 Not Found. If a bundler left the file out, import "multihead/inline"';
    const plain = wordsFor({ kind: 'failed', reason: missing }, false).join('');
    expect(plain).toMatch(/missing on the server\.$/);
    expect(plain).not.toMatch(/bundler|HTTP/);
  });

  it('does not say that there are no numbers where old ones stay', () => {
    const trouble = { kind: 'failed', reason: 'out of memory.' } as const;
    expect(wordsFor(trouble, false)[0]).toMatch(/no numbers/);
    expect(wordsFor(trouble, true).join('')).toMatch(/numbers below are older.* out of memory\. Reloading/);
  });
});
