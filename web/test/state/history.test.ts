import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { createStore } from '../../src/base/store.js';
import { keepHistory, type AddressBar } from '../../src/state/history.js';
import { defaults, fromHash, toHash, type PageState } from '../../src/state/page_state.js';

/** A fake of the browser's history, which records every write. */
function fakeBar(start = '') {
  const entries: { hash: string; index: number | undefined }[] = [{ hash: start, index: undefined }];
  let at = 0;
  let moved = () => {};
  let writes = 0;
  /** True if the fake refuses writes, as browsers do if a page writes too often. */
  let refuses = false;
  /** The moves that the browser has yet to make; null if it makes each move at once. */
  let later: number[] | null = null;
  const bar: AddressBar = {
    read: () => ({ ...entries[at]!, hash: entries[at]!.hash && `#${entries[at]!.hash}` }),
    push(hash, index) {
      if (refuses) return false;
      entries.splice(at + 1, Infinity, { hash, index });
      at += 1;
      return true;
    },
    replace(hash, index) {
      if (refuses) return false;
      entries[at] = { hash, index };
      writes += 1;
      return true;
    },
    go(by) {
      if (later) later.push(by);
      else go(by);
    },
    onMove: (listener) => (moved = listener),
  };
  function go(by: number): void {
    at += by;
    if (!entries[at]) throw new Error('the browser leaves the page');
    moved();
  }
  const typeAddress = (hash: string) => {
    entries.splice(at + 1, Infinity, { hash, index: undefined });
    at += 1;
    moved();
  };
  return {
    ...{ bar, entries, typeAddress, writes: () => writes },
    refuse: (now: boolean) => (refuses = now),
    slow: () => (later = []),
    /** Makes the requested moves, and returns their number. */
    make: () => later!.splice(0).map(go).length,
  };
}

function make(start = '') {
  const browser = fakeBar(start);
  const broken: string[][] = [];
  const state = createStore(fromHash(start).state);
  let time = 0;
  const history = keepHistory(
    state,
    browser.bar,
    (names) => broken.push([...names]),
    () => time,
  );
  const change = (part: Partial<PageState>, burst?: string) => history.change({ ...state.get(), ...part }, burst);
  return { ...browser, broken, state, history, change, wait: (ms: number) => (time += ms) };
}

describe('the history', () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  it('has one entry for each change, and undo and redo walk through them', () => {
    const { change, history, state, entries } = make();
    change({ step: 'split' });
    change({ causal: false });
    expect(entries.map(({ hash }) => hash)).toEqual(['', 'source=novels&step=split', 'source=novels&causal=0&step=split']);
    history.undo();
    expect(state.get()).toEqual({ ...defaults, step: 'split' });
    history.undo();
    expect(state.get()).toEqual(defaults);
    expect(history.moves.get()).toEqual({ undo: false, redo: true });
    history.undo();
    history.redo();
    history.redo();
    expect(state.get()).toEqual({ ...defaults, step: 'split', causal: false });
    expect(history.moves.get()).toEqual({ undo: true, redo: false });
    history.redo();
    expect(state.get().causal).toBe(false);
  });

  it('forgets what was undone after a new change', () => {
    const { change, history, entries } = make();
    change({ step: 'split' });
    history.undo();
    change({ step: 'mask' });
    expect(history.moves.get()).toEqual({ undo: true, redo: false });
    expect(entries.map(({ hash }) => hash)).toEqual(['', 'source=novels&step=mask']);
  });

  it('makes no entry if nothing changes', () => {
    const { change, entries } = make();
    change({ step: defaults.step });
    expect(entries).toHaveLength(1);
  });

  it('makes one entry of a burst, and writes it a few times only', () => {
    const { change, history, state, entries, writes, wait } = make();
    const before = writes();
    for (const letter of 'typing') {
      change({ text: state.get().text + letter }, 'typing');
      wait(100);
    }
    vi.runAllTimers();
    expect(entries.map(({ hash }) => fromHash(hash).state.text)).toEqual([defaults.text, `${defaults.text}typing`]);
    expect(writes() - before).toBe(1);
    wait(2000);
    change({ text: 'later' }, 'typing');
    change({ text: 'later, dragged' }, 'dragging');
    expect(entries).toHaveLength(4);
    history.undo();
    history.undo();
    expect(state.get().text).toBe(`${defaults.text}typing`);
  });

  it('restores a burst that was left before its address was written', () => {
    const { change, history, state, entries } = make();
    change({ text: 'a' }, 'typing');
    change({ text: 'ab' }, 'typing');
    history.undo();
    vi.runAllTimers();
    expect(entries[0]!.hash).toBe('');
    expect(state.get().text).toBe(defaults.text);
    history.redo();
    expect(state.get().text).toBe('ab');
    expect(entries[1]!.hash).toBe('text=ab&source=novels');
  });

  it('writes a pending burst before the next entry', () => {
    const { change, entries } = make();
    change({ text: 'a' }, 'typing');
    change({ text: 'ab' }, 'typing');
    change({ step: 'split' });
    expect(entries.map(({ hash }) => hash)).toEqual(['', 'text=ab&source=novels', 'text=ab&source=novels&step=split']);
  });

  it('takes an address that the visitor types as a change', () => {
    const { typeAddress, history, state, broken } = make();
    typeAddress('step=split&color=red');
    expect(state.get().step).toBe('split');
    expect(broken.at(-1)).toEqual(['"color"']);
    history.undo();
    expect(state.get()).toEqual(defaults);
    expect(broken.at(-1)).toEqual([]);
  });

  it('reports the broken fields of an entry as long as the address has them', () => {
    const { change, history, broken } = make('step=42');
    change({ causal: false });
    expect(broken.at(-1)).toEqual([]);
    history.undo();
    expect(broken.at(-1)).toEqual(['step']);
  });

  it('stays on the page however fast undo is pressed, and goes back as far as was asked', () => {
    const { change, history, state, slow, make: moveNow } = make();
    for (const step of ['x', 'mask', 'scale', 'scores'] as const) change({ step });
    slow();
    for (let i = 0; i < 3; i += 1) history.undo();
    expect(moveNow()).toBe(1);
    expect(history.direction()).toBe(0);
    expect(moveNow()).toBe(1);
    expect(state.get().step).toBe('x');
    for (let i = 0; i < 9; i += 1) history.undo();
    while (moveNow() > 0);
    expect(state.get()).toEqual(defaults);
    for (let i = 0; i < 9; i += 1) history.redo();
    while (moveNow() > 0);
    expect(state.get().step).toBe('scores');
  });

  it('stays on the page although the browser makes a move seconds later', () => {
    const { change, history, state, slow, make: moveNow } = make();
    for (const step of ['x', 'mask', 'scale', 'scores'] as const) change({ step });
    slow();
    for (let i = 0; i < 9; i += 1) history.undo();
    vi.advanceTimersByTime(5000);
    while (moveNow() > 0);
    expect(state.get()).toEqual(defaults);
    expect(history.moves.get()).toEqual({ undo: false, redo: true });
  });

  it('can undo again after a move that the browser has refused', () => {
    const { change, history, state, slow, bar, make: moveNow } = make();
    change({ step: 'split' });
    slow();
    const { go } = bar;
    bar.go = () => {};
    history.undo();
    vi.runAllTimers();
    bar.go = go;
    history.undo();
    expect(moveNow()).toBe(1);
    expect(state.get()).toEqual(defaults);
  });

  it('keeps a change that the browser makes no entry for, and writes it once it may', () => {
    const { change, history, state, entries, refuse } = make();
    change({ step: 'split' });
    refuse(true);
    change({ causal: false });
    change({ head: 2 });
    vi.advanceTimersByTime(5000);
    expect(entries.map(({ hash }) => hash)).toEqual(['', 'source=novels&step=split']);
    refuse(false);
    vi.advanceTimersByTime(5000);
    expect(entries.map(({ hash }) => hash)).toEqual(['', 'source=novels&causal=0&head=3&step=split']);
    history.undo();
    expect(state.get()).toEqual(defaults);
    history.redo();
    expect(state.get()).toEqual({ ...defaults, step: 'split', causal: false, head: 2 });
  });

  it('reads entries from before a reload from their addresses', () => {
    const { bar, entries } = fakeBar('');
    bar.replace('', 0);
    bar.push('step=split', 1);
    const state = createStore(fromHash('step=split').state);
    const history = keepHistory(state, bar, () => {});
    expect(history.moves.get()).toEqual({ undo: true, redo: false });
    history.undo();
    expect(state.get()).toEqual(defaults);
    expect(toHash(state.get())).toBe(entries[0]!.hash);
  });
});
