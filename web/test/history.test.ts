import { beforeEach, describe, expect, it, vi } from 'vitest';
import { keepHistory, type AddressBar } from '../src/history.js';
import { defaults, fromHash, toHash, type PageState } from '../src/page_state.js';
import { createStore } from '../src/store.js';

/** A browser's history that remembers every write. */
function fakeBar(start = '') {
  const entries: { hash: string; index: number | undefined }[] = [{ hash: start, index: undefined }];
  let at = 0;
  let moved = () => {};
  let writes = 0;
  const bar: AddressBar = {
    read: () => ({ ...entries[at]!, hash: entries[at]!.hash && `#${entries[at]!.hash}` }),
    push(hash, index) {
      entries.splice(at + 1, Infinity, { hash, index });
      at += 1;
    },
    replace(hash, index) {
      entries[at] = { hash, index };
      writes += 1;
    },
    go(by) {
      at += by;
      moved();
    },
    onMove: (listener) => (moved = listener),
  };
  const typeAddress = (hash: string) => {
    entries.splice(at + 1, Infinity, { hash, index: undefined });
    at += 1;
    moved();
  };
  return { bar, entries, typeAddress, writes: () => writes };
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
  const change = (part: Partial<PageState>, burst?: string) =>
    history.change({ ...state.get(), ...part }, burst);
  return { ...browser, broken, state, history, change, wait: (ms: number) => (time += ms) };
}

describe('the history', () => {
  beforeEach(() => void vi.useFakeTimers());

  it('has one entry for each change, and undo and redo walk through them', () => {
    const { change, history, state, entries } = make();
    change({ step: 'x' });
    change({ causal: true });
    expect(entries.map(({ hash }) => hash)).toEqual(['', 'step=x', 'causal=1&step=x']);
    history.undo();
    expect(state.get()).toEqual({ ...defaults, step: 'x' });
    history.undo();
    expect(state.get()).toEqual(defaults);
    expect(history.moves.get()).toEqual({ undo: false, redo: true });
    history.undo();
    history.redo();
    history.redo();
    expect(state.get()).toEqual({ ...defaults, step: 'x', causal: true });
    expect(history.moves.get()).toEqual({ undo: true, redo: false });
    history.redo();
    expect(state.get().causal).toBe(true);
  });

  it('forgets what was undone after a new change', () => {
    const { change, history, entries } = make();
    change({ step: 'x' });
    history.undo();
    change({ step: 'mask' });
    expect(history.moves.get()).toEqual({ undo: true, redo: false });
    expect(entries.map(({ hash }) => hash)).toEqual(['', 'step=mask']);
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
    expect(entries.map(({ hash }) => fromHash(hash).state.text)).toEqual([
      defaults.text,
      `${defaults.text}typing`,
    ]);
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
    expect(entries[1]!.hash).toBe('text=ab');
  });

  it('writes a pending burst before the next entry', () => {
    const { change, entries } = make();
    change({ text: 'a' }, 'typing');
    change({ text: 'ab' }, 'typing');
    change({ step: 'x' });
    expect(entries.map(({ hash }) => hash)).toEqual(['', 'text=ab', 'text=ab&step=x']);
  });

  it('takes an address that the visitor types as a change', () => {
    const { typeAddress, history, state, broken } = make();
    typeAddress('step=x&colour=red');
    expect(state.get().step).toBe('x');
    expect(broken.at(-1)).toEqual(['colour']);
    history.undo();
    expect(state.get()).toEqual(defaults);
    expect(broken.at(-1)).toEqual([]);
  });

  it('reports the broken fields of an entry as long as the address has them', () => {
    const { change, history, broken } = make('step=42');
    change({ causal: true });
    expect(broken.at(-1)).toEqual([]);
    history.undo();
    expect(broken.at(-1)).toEqual(['step']);
  });

  it('reads entries from before a reload from their addresses', () => {
    const { bar, entries } = fakeBar('');
    bar.replace('', 0);
    bar.push('step=x', 1);
    const state = createStore(fromHash('step=x').state);
    const history = keepHistory(state, bar, () => {});
    expect(history.moves.get()).toEqual({ undo: true, redo: false });
    history.undo();
    expect(state.get()).toEqual(defaults);
    expect(toHash(state.get())).toBe(entries[0]!.hash);
  });
});
