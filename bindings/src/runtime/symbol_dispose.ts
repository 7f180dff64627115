// `using` needs Symbol.dispose, which Safari does not have yet. The first load() defines it; importing
// the package does not. No other global is changed.

/**
 * Returns Symbol.dispose, and defines it if it is missing. Uses the symbol that the helpers of esbuild, Babel and swc
 * use in that case, so that classes of other libraries stay disposable. Tests pass another `holder` than Symbol.
 */
export function polyfillSymbolDispose(holder: object = Symbol): symbol {
  const existing: unknown = Reflect.get(holder, 'dispose');
  if (typeof existing === 'symbol') return existing;
  const symbol = Symbol.for('Symbol.dispose');
  Object.defineProperty(holder, 'dispose', { value: symbol });
  return symbol;
}

/** Defines [Symbol.dispose]() on the classes' prototypes as an alias of dispose(). */
export function makeDisposable(...classes: readonly { readonly prototype: { dispose(): void } }[]): void {
  const symbol = polyfillSymbolDispose();
  for (const { prototype } of classes) {
    if (symbol in prototype) continue;
    Object.defineProperty(prototype, symbol, {
      configurable: true,
      writable: true,
      // Looks up dispose() at the call, because a derived class may override it.
      value(this: { dispose(): void }) {
        this.dispose();
      },
    });
  }
}
