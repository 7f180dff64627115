// `using` needs Symbol.dispose, which Safari does not have yet. It is defined when the first
// module is loaded, not on import, and no other global is touched.

interface DisposableClass {
  readonly prototype: { dispose(): void };
}

/** Defines Symbol.dispose where it is missing; `holder` is replaced by tests. */
export function polyfillSymbolDispose(holder: object = Symbol): symbol {
  const existing: unknown = Reflect.get(holder, 'dispose');
  if (typeof existing === 'symbol') return existing;
  const symbol = Symbol('Symbol.dispose');
  Object.defineProperty(holder, 'dispose', { value: symbol });
  return symbol;
}

/** Gives the instances of a class [Symbol.dispose]() as another name of dispose(). */
export function makeDisposable(...classes: DisposableClass[]): void {
  const symbol = polyfillSymbolDispose();
  for (const { prototype } of classes) {
    if (symbol in prototype) continue;
    Object.defineProperty(prototype, symbol, {
      configurable: true,
      writable: true,
      value: prototype.dispose,
    });
  }
}
