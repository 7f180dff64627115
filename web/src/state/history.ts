// Back, Forward, undo and redo share one list of states: the browser's history. Each change of the state is one entry;
// a burst of changes, such as typing, is one entry, too.

import { createStore, type Store } from '../base/store.js';
import { fromHash, toHash, type PageState } from './page_state.js';

/** The parts of window.history and window.location that the page uses. */
export interface AddressBar {
  /** The hash of the current entry, and the index stored with it. */
  read(): { hash: string; index: number | undefined };
  /**
   * Adds an entry. Returns false if the browser refuses: browsers limit how many entries a page makes in a short time.
   */
  push(hash: string, index: number): boolean;
  /** Rewrites the current entry. Returns false if the browser refuses. */
  replace(hash: string, index: number): boolean;
  go(by: number): void;
  /** Calls `listener` when the visitor moves to another entry, or edits the address. */
  onMove(listener: () => void): void;
}

export interface Moves {
  readonly undo: boolean;
  readonly redo: boolean;
}

/** Milliseconds without a change that end a burst. */
const burstPause = 1000;
/** Milliseconds between two rewrites of an entry during a burst, because browsers limit the number of rewrites. */
const rewritePause = 250;
/** Milliseconds after which the browser may accept a rewrite that it has refused. */
const refusedPause = 1000;
/**
 * Milliseconds after which the browser has refused a move by undo() or redo(). A move that is only late, on a busy machine,
 * must not be requested again: both together could lead out of the page.
 */
const moveTimeout = 10_000;

/**
 * `onBroken` receives the names of the fields in a new address that could not be read; an empty list if all were read.
 */
export function keepHistory(
  state: Store<PageState>,
  bar: AddressBar,
  onBroken: (fields: readonly string[]) => void,
  now: () => number = () => performance.now(),
) {
  // States by the index of their entry. Entries from before a reload are missing here and are read from the address.
  const known = new Map<number, PageState>();
  let index = bar.read().index ?? 0;
  let last = index;
  let burst: { name: string; at: number } | undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;
  /**
   * Set while the browser has yet to make a move by undo() or redo(). `asked` is the direction of that move, `waiting`
   * the sum of the moves requested since.
   */
  let moving: ReturnType<typeof setTimeout> | undefined;
  let asked = 0;
  let waiting = 0;
  let direction = 0;
  let isMove = false;
  const moves = createStore<Moves>({ undo: index > 0, redo: false });

  const count = () => {
    const next = { undo: index > 0, redo: index < last };
    const { undo, redo } = moves.get();
    if (next.undo !== undo || next.redo !== redo) moves.set(next);
  };

  const rewrite = () => {
    clearTimeout(timer);
    timer = undefined;
    if (!bar.replace(toHash(state.get()), index)) rewriteSoon(refusedPause);
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
    // If the browser makes no entry for a change, the change joins the current entry.
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
      // The visitor edited the address: make a new entry, with nothing to redo.
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
    isMove = true;
    state.set(next);
    isMove = false;
    direction = 0;
    count();
    go(waiting);
  }

  /**
   * Requests one move at a time: the browser moves later, and `index` is valid for the next request only after that.
   */
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
    }, moveTimeout);
    bar.go(inside);
  }

  known.set(index, state.get());
  bar.replace(bar.read().hash.replace(/^#/, ''), index);
  bar.onMove(move);
  return {
    /** Sets the state as a new entry. Changes with the same `burst` name in quick succession share an entry. */
    change,
    undo: (): void => go(-1),
    redo: (): void => go(1),
    moves,
    /** −1 while undo() changes the state, 1 while redo() does, otherwise 0. */
    direction: (): number => direction,
    /** True while Back, Forward, undo, redo or an edited address changes the state. */
    isMove: (): boolean => isMove,
    flush,
  };
}

const key = 'multihead';

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
      return false; // Firefox and Safari throw above their limit
    }
    // Chromium ignores calls above its limit, without an error.
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
