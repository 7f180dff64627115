// What the garbage collector frees.

/** Disposes what an owner held when nobody references the owner any more. What it held must not reference the owner. */
export const abandoned =
  typeof FinalizationRegistry === 'function' ? new FinalizationRegistry<{ dispose(): void }>((held) => held.dispose()) : undefined;
