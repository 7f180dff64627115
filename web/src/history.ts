// The one list of states behind Back, Forward, undo and redo: the browser's own history. A change of the
// state is an entry of it; changes that come in a burst, such as typing, are one entry.

import { fromHash, toHash, type PageState } from './page_state.js';
import { createStore, type Store } from './store.js';

/** The part of window.history and window.location that is used. */
export interface AddressBar {
  /** The hash of the current entry, and what was stored with it. */
  read(): { hash: string; index: number | undefined };
  /** False if the browser refuses: browsers limit how many entries a page makes in a short time. */
  push(hash: string, index: number): boolean;
  /** Likewise. */
  replace(hash: string, index: number): boolean;
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
  /** While undo() or redo() changes the state, −1 or 1; otherwise 0. */
  direction(): number;
  /** Writes a change that has not reached the address yet. */
  flush(): void;
}

/** A pause of this length ends a burst. */
const burstPause = 1000;
/** Browsers limit how often an entry may be rewritten; a burst does it once in this time. */
const rewritePause = 250;
/** After this time without the move that undo() or redo() asked for, the browser has refused it. */
const movePatience = 1000;

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
  /** Set while a move by undo() or redo() is under way; `asked` is its direction, `waiting` what was asked for since. */
  let moving: ReturnType<typeof setTimeout> | undefined;
  let asked = 0;
  let waiting = 0;
  let direction = 0;
  const moves = createStore<Moves>({ undo: index > 0, redo: false });

  const count = () => {
    const next = { undo: index > 0, redo: index < last };
    const { undo, redo } = moves.get();
    if (next.undo !== undo || next.redo !== redo) moves.set(next);
  };

  const rewrite = () => {
    clearTimeout(timer);
    timer = undefined;
    if (!bar.replace(toHash(state.get()), index)) rewriteSoon(movePatience);
  };
  const rewriteSoon = (pause = rewritePause) => {
    timer ??= setTimeout(rewrite, pause);
  };

  const flush = () => {
    if (timer !== undefined) rewrite();
  };

  function change(next: PageState, name?: string): void {
    if (toHash(next) === toHash(state.get())) return;
    const continues = name !== undefined && burst?.name === name && now() - burst.at < burstPause;
    burst = name === undefined ? undefined : { name, at: now() };
    if (!continues) flush();
    // A change that the browser makes no entry for joins the entry before it.
    if (continues || !bar.push(toHash(next), index + 1)) {
      rewriteSoon();
    } else {
      index += 1;
      last = index;
    }
    if (!continues) onBroken([]);
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
    clearTimeout(moving);
    moving = undefined;
    // The entry's address is old if the visitor left it within rewritePause of the last change.
    if (remembered && toHash(remembered) !== toHash(read)) bar.replace(toHash(remembered), index);
    onBroken(broken);
    direction = asked;
    asked = 0;
    state.set(next);
    direction = 0;
    count();
    go(waiting);
  }

  /** One move at a time: the browser makes it later, and until then the index is not that of the next one. */
  function go(by: number): void {
    if (moving !== undefined) {
      waiting += by;
      return;
    }
    waiting = 0;
    const inside = Math.max(-index, Math.min(last - index, by));
    if (inside === 0) return;
    asked = Math.sign(inside);
    moving = setTimeout(() => {
      moving = undefined;
      asked = 0;
      go(waiting);
    }, movePatience);
    bar.go(inside);
  }

  known.set(index, state.get());
  bar.replace(bar.read().hash.replace(/^#/, ''), index);
  bar.onMove(move);
  return {
    change,
    undo: () => go(-1),
    redo: () => go(1),
    moves,
    direction: () => direction,
    flush,
  };
}

const key = 'multihead';

/** The address of this window. */
export function windowBar(): AddressBar {
  const indexNow = (): number | undefined => {
    const stored: unknown = (history.state as Record<string, unknown> | null)?.[key];
    return typeof stored === 'number' ? stored : undefined;
  };
  const write = (how: 'pushState' | 'replaceState') => (hash: string, index: number) => {
    const address = location.pathname + location.search + (hash && `#${hash}`);
    try {
      history[how]({ [key]: index }, '', address);
    } catch {
      return false; // Firefox's and Safari's limit
    }
    // Chromium ignores what is beyond its limit, without an error.
    return indexNow() === index && location.href.endsWith(address);
  };
  return {
    read: () => ({ hash: location.hash, index: indexNow() }),
    push: write('pushState'),
    replace: write('replaceState'),
    go: (by) => history.go(by),
    onMove: (listener) => addEventListener('popstate', listener),
  };
}
