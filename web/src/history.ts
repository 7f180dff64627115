// The one list of states behind Back, Forward, undo and redo: the browser's own history. A change of the
// state is an entry of it; changes that come in a burst, such as typing, are one entry.

import { fromHash, toHash, type PageState } from './page_state.js';
import { createStore, type Store } from './store.js';

/** The part of window.history and window.location that is used. */
export interface AddressBar {
  /** The hash of the current entry, and what was stored with it. */
  read(): { hash: string; index: number | undefined };
  push(hash: string, index: number): void;
  replace(hash: string, index: number): void;
  go(by: number): void;
  /** Calls `listener` when the visitor moves to another entry, or edits the address. */
  onMove(listener: () => void): void;
}

export interface Moves {
  readonly undo: boolean;
  readonly redo: boolean;
}

export interface StateHistory {
  /** Sets the state as a new entry. Changes with the same `burst` name in quick succession share an entry. */
  change(next: PageState, burst?: string): void;
  undo(): void;
  redo(): void;
  /** Whether there is something to undo and to redo. */
  readonly moves: Store<Moves>;
  /** Writes a change that has not reached the address yet. */
  flush(): void;
}

/** A pause of this length ends a burst. */
const burstPause = 1000;
/** Browsers limit how often an entry may be rewritten; a burst does it once in this time. */
const rewritePause = 250;

/** `onBroken` is given the fields of a new address that could not be read; an empty list for a valid one. */
export function keepHistory(
  state: Store<PageState>,
  bar: AddressBar,
  onBroken: (fields: readonly string[]) => void,
  now: () => number = () => performance.now(),
): StateHistory {
  // States by the index of their entry. Entries from before a reload are missing and read from the address.
  const known = new Map<number, PageState>();
  let index = bar.read().index ?? 0;
  let last = index;
  let burst: { name: string; at: number } | undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const moves = createStore<Moves>({ undo: index > 0, redo: false });

  const count = () => {
    const next = { undo: index > 0, redo: index < last };
    const { undo, redo } = moves.get();
    if (next.undo !== undo || next.redo !== redo) moves.set(next);
  };

  const rewrite = () => {
    clearTimeout(timer);
    timer = undefined;
    bar.replace(toHash(state.get()), index);
  };

  const flush = () => {
    if (timer !== undefined) rewrite();
  };

  function change(next: PageState, name?: string): void {
    if (toHash(next) === toHash(state.get())) return;
    const continues = name !== undefined && burst?.name === name && now() - burst.at < burstPause;
    burst = name === undefined ? undefined : { name, at: now() };
    if (continues) {
      timer ??= setTimeout(rewrite, rewritePause);
    } else {
      flush();
      index += 1;
      last = index;
      bar.push(toHash(next), index);
      onBroken([]);
    }
    known.set(index, next);
    state.set(next);
    count();
  }

  function move(): void {
    clearTimeout(timer);
    timer = undefined;
    burst = undefined;
    const entry = bar.read();
    const remembered = entry.index === undefined ? undefined : known.get(entry.index);
    const { state: read, broken } = fromHash(entry.hash);
    if (entry.index === undefined) {
      // The visitor edited the address: a new entry, and nothing to redo.
      index += 1;
      last = index;
      bar.replace(entry.hash.replace(/^#/, ''), index);
    } else {
      index = entry.index;
      last = Math.max(last, index);
    }
    const next = remembered ?? read;
    known.set(index, next);
    // The entry's address is old if the visitor left it within rewritePause of the last change.
    if (remembered && toHash(remembered) !== toHash(read)) bar.replace(toHash(remembered), index);
    onBroken(broken);
    state.set(next);
    count();
  }

  known.set(index, state.get());
  bar.replace(bar.read().hash.replace(/^#/, ''), index);
  bar.onMove(move);
  return {
    change,
    undo: () => index > 0 && bar.go(-1),
    redo: () => index < last && bar.go(1),
    moves,
    flush,
  };
}

const key = 'multihead';

/** The address of this window. */
export function windowBar(): AddressBar {
  const write = (how: 'pushState' | 'replaceState') => (hash: string, index: number) => {
    const address = location.pathname + location.search + (hash && `#${hash}`);
    try {
      history[how]({ [key]: index }, '', address);
    } catch {
      // The browser's limit on changes of the address: the state holds, only the address is old.
    }
  };
  return {
    read: () => {
      const stored: unknown = (history.state as Record<string, unknown> | null)?.[key];
      return { hash: location.hash, index: typeof stored === 'number' ? stored : undefined };
    },
    push: write('pushState'),
    replace: write('replaceState'),
    go: (by) => history.go(by),
    onMove: (listener) => addEventListener('popstate', listener),
  };
}
