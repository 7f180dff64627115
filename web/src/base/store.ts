// A value with listeners for its changes.

export interface Store<T> {
  get(): T;
  set(value: T): void;
  /** Calls `listener` once now, and after every change. Returns a function that removes it. */
  watch(listener: (value: T, previous: T | undefined) => void): () => void;
}

export function createStore<T>(initial: T): Store<T> {
  let value = initial;
  const listeners = new Set<(value: T, previous: T | undefined) => void>();
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      const previous = value;
      value = next;
      for (const listener of listeners) listener(value, previous);
    },
    watch(listener) {
      listeners.add(listener);
      listener(value, undefined);
      return () => listeners.delete(listener);
    },
  };
}

/** Returns a function that tells whether its argument has another content than at its last call. */
export function differs(): (content: unknown) => boolean {
  let last: string | undefined;
  return (content) => last !== (last = JSON.stringify(content));
}
