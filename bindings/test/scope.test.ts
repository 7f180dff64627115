import type { Multihead, Tensor } from 'multihead';
import { beforeEach, describe, expect, it, vi } from 'vitest';
import { loadBuild } from './builds.ts';

const pause = (ms = 1): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

const fails = (): never => {
  throw new RangeError('on purpose');
};

function revoked(): object {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  return proxy;
}

describe('scope', () => {
  // These tests leave tensors to the garbage collector, which garbage.test.ts covers.
  vi.spyOn(console, 'warn').mockImplementation(() => {});

  let mh: Multihead;
  beforeEach(async () => {
    mh = await loadBuild('simd128');
  });
  const live = (): number => mh.memory().live;

  it('disposes what is not returned', () => {
    const outer = mh.zeros([1]);
    const inner: Tensor[] = [];
    const result = mh.scope(() => {
      inner.push(mh.zeros([2]), mh.zeros([3]));
      return 42;
    });
    expect(result).toBe(42);
    expect(inner.map(({ disposed }) => disposed)).toEqual([true, true]);
    expect(outer.disposed).toBe(false);
    expect(live()).toBe(1);
  });

  it.each<[string, (t: Tensor) => unknown]>([
    ['itself', (t) => t],
    ['in an array', (t) => [1, t]],
    ['in an object', (t) => ({ a: 'b', t })],
    ['as a promise', async (t) => t],
    ['in the object of a promise', async (t) => ({ t })],
  ])('keeps what is returned %s', async (_, wrap) => {
    let kept: Tensor | undefined;
    await mh.scope(() => {
      mh.zeros([1]);
      kept = mh.zeros([2]);
      return wrap(kept);
    });
    expect(kept?.disposed).toBe(false);
    expect(live()).toBe(1);
  });

  it('ends at once for an array that has holes, or that only claims a length', () => {
    const sparse: unknown[] = new Array(2 ** 32 - 1);
    sparse[7] = mh.zeros([1]);
    const claims = new Proxy([], { get: (_, name) => (name === 'length' ? 2 ** 40 : 1) });
    for (const result of [sparse, { sparse }, claims, [claims]]) {
      const inner = mh.scope(() => {
        mh.zeros([2]);
        return result;
      });
      expect(inner).toBe(result);
      expect(live()).toBe(1);
    }
  });

  it('keeps results of operations, and a module', () => {
    const x = { shape: [1, 1, 2, 2], data: new Float32Array(4) };
    const { out, lse } = mh.scope(() => mh.attention(x, x, x, { return: ['lse'] }));
    expect([out.disposed, lse.disposed]).toEqual([false, false]);
    const config = { embedDim: 2, numHeads: 1 };
    const module = mh.scope(() => mh.multiHeadAttention(config));
    const cache = mh.scope(() => module.createCache({ capacity: 4 }));
    expect([module.disposed, cache.disposed]).toEqual([false, false]);
    const gone = mh.scope(() => {
      const inner = mh.multiHeadAttention(config);
      return { nested: { inner, cache: inner.createCache({ capacity: 4 }) } };
    });
    expect([gone.nested.inner.disposed, gone.nested.cache.disposed]).toEqual([true, true]);
    expect(live()).toBe(2 + 2);
  });

  it('does not dispose an `out` from outside', () => {
    const x = { shape: [1, 1, 2, 2], data: new Float32Array(4) };
    const out = mh.zeros([1, 1, 2, 2]);
    mh.scope(() => void mh.attention(x, x, x, { out }));
    expect(out.disposed).toBe(false);
  });

  it('passes values that an inner scope returns to the outer scope', () => {
    let inner: Tensor | undefined;
    mh.scope(() => {
      inner = mh.scope(() => mh.zeros([1]));
      expect(inner.disposed).toBe(false);
    });
    expect(inner?.disposed).toBe(true);
  });

  it('disposes everything when the function throws or its promise is rejected', async () => {
    const fail = (): never => {
      mh.zeros([1]);
      throw new RangeError('on purpose');
    };
    expect(() => mh.scope(fail)).toThrow(RangeError);
    await expect(mh.scope(async () => fail())).rejects.toThrow(RangeError);
    expect(live()).toBe(0);
    mh.zeros([1]);
    expect(live()).toBe(1);
  });

  it.each<[string, () => object]>([
    ['its then', () => Object.defineProperty({}, 'then', { get: fails })],
    [
      'a value',
      () => ({
        tensor: mh.zeros([1]),
        get value() {
          return fails();
        },
      }),
    ],
    ['everything', revoked],
    ['its prototype', () => new Proxy({}, { getPrototypeOf: fails })],
  ])('disposes everything when its result throws at %s', async (_, result) => {
    const looked = (): unknown =>
      mh.scope(() => {
        mh.zeros([1]);
        return result();
      });
    expect(looked).toThrow();
    expect(live()).toBe(0);
    const waiting = async () => {
      mh.zeros([1]);
      await pause();
      return result();
    };
    await expect(mh.scope(waiting)).rejects.toThrow();
    expect(live()).toBe(0);
    mh.zeros([1]);
    expect(live()).toBe(1);
  });

  it('lasts until a promise settles', async () => {
    const made: Tensor[] = [];
    const kept = await mh.scope(async () => {
      made.push(mh.zeros([1]));
      await pause();
      expect(made[0]?.disposed).toBe(false);
      made.push(mh.zeros([2]));
      return mh.zeros([3]);
    });
    expect(made.map(({ disposed }) => disposed)).toEqual([true, true]);
    expect(kept.disposed).toBe(false);
    expect(live()).toBe(1);
  });

  it('belongs to the outer scope if it was opened before that began to wait', async () => {
    const inner: Tensor[] = [];
    await mh.scope(async () => {
      inner.push(
        await mh.scope(async () => {
          await pause();
          inner.push(mh.zeros([1]));
          return mh.zeros([2]);
        }),
      );
      expect(inner.map(({ disposed }) => disposed)).toEqual([true, false]);
    });
    expect(live()).toBe(0);
  });

  it('does not dispose the tensors of another scope that is still open', async () => {
    const work = (first: number, second: number) =>
      mh.scope(async () => {
        const a = mh.zeros([1]);
        await pause(first);
        const b = mh.zeros([2]);
        await pause(second);
        expect([a.disposed, b.disposed]).toEqual([false, false]);
        return mh.zeros([3]);
      });
    for (const [first, second] of [
      [1, 30],
      [30, 1],
      [10, 10],
    ] as const) {
      const results = await Promise.all([work(first, second), work(second, first), work(5, 5)]);
      expect(results.map(({ disposed }) => disposed)).toEqual([false, false, false]);
      expect(live()).toBe(3);
      for (const tensor of results) tensor.dispose();
    }
  });
});
