import { describe, expect, it } from 'vitest';
import { polyfillSymbolDispose } from '../src/runtime/symbol_dispose.ts';

describe('polyfillSymbolDispose', () => {
  it('keeps an existing symbol', () => {
    const dispose = Symbol('native');
    const holder = { dispose };
    expect(polyfillSymbolDispose(holder)).toBe(dispose);
    expect(holder).toEqual({ dispose });
  });

  it('defines one symbol and nothing else', () => {
    const holder: { dispose?: symbol } = {};
    const symbol = polyfillSymbolDispose(holder);
    // The symbol that the helpers of esbuild, Babel and swc use if Symbol.dispose is missing.
    expect(symbol).toBe(Symbol.for('Symbol.dispose'));
    expect(Reflect.ownKeys(holder)).toEqual(['dispose']);
    expect(Object.getOwnPropertyDescriptor(holder, 'dispose')).toEqual({
      value: symbol,
      writable: false,
      enumerable: false,
      configurable: false,
    });
    expect(polyfillSymbolDispose(holder)).toBe(symbol);
  });
});
