import { describe, expect, it } from 'vitest';
import { createApp } from '../../src/state/app.js';
import type { AddressBar } from '../../src/state/history.js';

const barAt = (hash: string): AddressBar => ({
  read: () => ({ hash, index: undefined }),
  push: () => true,
  replace: () => true,
  go: () => {},
  onMove: () => {},
});
const start = (hash: string) =>
  createApp(() => {
    throw new Error('no worker starts before it is needed');
  }, barAt(hash));

describe('the first address', () => {
  it('gives the state that it names', () => {
    const app = start('#text=fixed+now&causal=1');
    expect([app.state.get().text, app.state.get().causal, app.broken.get()]).toEqual(['fixed now', true, []]);
  });

  it('is said to be broken where it is', () => {
    const app = start('#heads=zzz&causal=1');
    expect(app.broken.get()).toEqual(['heads']);
    expect(app.state.get().causal).toBe(true);
  });
});
