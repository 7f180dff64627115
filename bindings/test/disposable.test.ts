// Disposing results as a whole, scopes that `using` ends, and mh.dispose().

import { load, type Multihead, type Tensor } from 'multihead';
import { createExperiment, headStatistics } from 'multihead/lab';
import { createPool } from 'multihead/pool';
import { beforeEach, describe, expect, it, vi } from 'vitest';
import { errorOf, expectRefused, expectWorks, freshLoad, loadBuild, openBuild } from './builds.ts';
import { random } from './random.ts';
import { filled } from './random_case.ts';

// These tests leave tensors to the garbage collector, which garbage.test.ts covers.
vi.spyOn(console, 'warn').mockImplementation(() => {});

const r = random(9);
const plain = (...shape: number[]) => filled(r, ...shape);
const [q, k, v] = [plain(1, 2, 3, 4), plain(1, 2, 3, 4), plain(1, 2, 3, 4)];
const cu = Int32Array.of(0, 3);
const packed = plain(3, 2, 4);

let mh: Multihead;
beforeEach(async () => {
  mh = await loadBuild('simd128');
});
const live = (): number => mh.memory().live;

describe('a result', () => {
  const tensorsIn = (result: object): Tensor[] =>
    Object.values(result)
      .flat()
      .filter((each): each is Tensor => typeof each === 'object' && each !== null && 'dispose' in each);

  const calls: Record<string, () => Disposable> = {
    attention: () => mh.attention(q, k, v, { return: ['lse', 'weights', 'dropoutMask'], capture: [{ stage: 'raw' }, { stage: 'weights' }] }),
    attentionVarlen: () => mh.attentionVarlen(packed, packed, packed, { cuQ: cu, cuK: cu, return: ['lse'] }),
    attentionBackward: () => {
      const bias = plain(3, 3);
      using forward = mh.attention(q, k, v, { bias, return: ['lse'] });
      return mh.attentionBackward({ q, k, v, ...forward, dOut: q }, { bias });
    },
    attentionVarlenBackward: () => {
      using forward = mh.attentionVarlen(packed, packed, packed, { cuQ: cu, cuK: cu, return: ['lse'] });
      return mh.attentionVarlenBackward({ q: packed, k: packed, v: packed, ...forward, dOut: packed }, { cuQ: cu, cuK: cu });
    },
    latentAttention: () =>
      mh.latentAttention(
        {
          ...{ qNope: q, qRope: plain(1, 2, 3, 2), latent: plain(1, 3, 5), kRope: plain(1, 3, 2) },
          ...{ wUk: plain(2, 4, 5), wUv: plain(2, 4, 5) },
        },
        { form: 'absorbed', return: ['lse'] },
      ),
    'cache.attend': () => {
      using cache = mh.createCache({ numKvHeads: 2, headDim: 4, capacity: 4 });
      cache.append(k, v);
      return cache.attend(q, { return: ['lse', 'weights'] });
    },
    'module.forward, step and backward': () => {
      using module = mh.multiHeadAttention({ embedDim: 4, numHeads: 2, bias: false });
      module.loadStateDict({ in_proj_weight: plain(12, 4), 'out_proj.weight': plain(4, 4) });
      using cache = module.createCache({ capacity: 4 });
      const x = plain(1, 3, 4);
      module.step(x, cache, { return: ['weights'] })[Symbol.dispose]();
      module.backward({ query: x, key: x, value: x }, x)[Symbol.dispose]();
      return module.forward(x, { return: ['weights', 'meanWeights'], trace: true });
    },
    'block.forward and backward': () => {
      using block = mh.transformerBlock({ embedDim: 4, numHeads: 2, norm: 'none', bias: false });
      block.loadStateDict({ 'self_attn.in_proj_weight': plain(12, 4), 'self_attn.out_proj.weight': plain(4, 4) });
      const x = plain(1, 3, 4);
      block.backward(x, x)[Symbol.dispose]();
      return block.forward(x, { return: ['attentionOut'] });
    },
    'transformer.forward': () => {
      using model = mh.transformer({ numLayers: 2, vocabSize: 5, embedDim: 4, numHeads: 2, maxPositions: 4 });
      model.initialize();
      return model.forward(Int32Array.of(1, 2, 3), { return: ['logits', 'hidden'] });
    },
  };

  it.each(Object.keys(calls))('of %s frees its tensors', (name) => {
    const make = calls[name] as () => Disposable;
    const result = make();
    const tensors = tensorsIn(result);
    expect(tensors.length).toBeGreaterThan(0);
    expect(live()).toBe(tensors.length);
    expect(Object.getOwnPropertyDescriptor(result, Symbol.dispose)?.enumerable).toBe(false);
    expect(Object.getOwnPropertySymbols({ ...result })).toEqual([]);
    {
      using again = result;
      expect(again).toBe(result);
    }
    expect(tensors.every(({ disposed }) => disposed)).toBe(true);
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
    result[Symbol.dispose]();
  });

  it('does not free tensors of the caller, nor those that the caller has put into it', () => {
    const out = mh.zeros(q.shape);
    const other = mh.zeros([1]);
    {
      using result = mh.attention(q, k, v, { out, return: ['lse'] });
      Object.assign(result, {
        other,
        broken: {
          get dispose() {
            throw new RangeError('no');
          },
        },
      });
      delete (result as { lse?: Tensor }).lse;
    }
    expect([out.disposed, other.disposed]).toEqual([false, false]);
    expect(live()).toBe(2);
    const dQ = mh.zeros(q.shape);
    {
      using forward = mh.attention(q, k, v, { return: ['lse'] });
      using gradients = mh.attentionBackward({ q, k, v, ...forward, dOut: q }, { out: { dQ } });
      expect(gradients.dQ).toBe(dQ);
    }
    expect(dQ.disposed).toBe(false);
    expect(live()).toBe(3);
  });

  it('that a scope returns keeps its tensors, and can be disposed afterwards', () => {
    const result = mh.scope(() => mh.attention(q, k, v, { return: ['lse'] }));
    expect(live()).toBe(2);
    result[Symbol.dispose]();
    expect(live()).toBe(0);
  });

  it('of a call that fails leaves nothing', () => {
    expectRefused(mh, () => mh.attention(q, k, v, { scale: NaN, return: ['lse'] }), 'E_OPTION', 'scale');
  });
});

describe('using scope = mh.scope()', () => {
  it('disposes what was made in the block, and not what is kept', () => {
    const before = mh.zeros([1]);
    const kept: Tensor[] = [];
    {
      using scope = mh.scope();
      mh.zeros([2]);
      const { out } = scope.keep(mh.attention(q, k, v, { return: ['lse'] }));
      kept.push(out, scope.keep(mh.zeros([3])), ...scope.keep([mh.zeros([4])]));
      expect(scope.keep(7)).toBe(7);
      expect(live()).toBe(1 + 1 + 2 + 2);
    }
    expect(kept.map(({ disposed }) => disposed)).toEqual([false, false, false]);
    expect(before.disposed).toBe(false);
    expect(live()).toBe(1 + 2 + 2);
  });

  it('disposes everything when the block throws', () => {
    const failing = (): void => {
      using scope = mh.scope();
      expect(scope.disposed).toBe(false);
      mh.zeros([1]);
      throw new RangeError('on purpose');
    };
    expect(failing).toThrow(RangeError);
    expect(live()).toBe(0);
  });

  it('nests with scopes of both forms', () => {
    const outer = mh.scope(() => {
      using scope = mh.scope();
      const passed = scope.keep(mh.scope(() => mh.zeros([1])));
      mh.zeros([2]);
      {
        using inner = mh.scope();
        inner.keep(mh.zeros([3]));
        mh.zeros([4]);
      }
      expect(live()).toBe(3);
      return passed;
    });
    expect(outer.disposed).toBe(false);
    expect(live()).toBe(1);
  });

  it('ends with the scope around it, and may end before a younger one', () => {
    const forgotten = mh.scope(() => {
      const scope = mh.scope();
      mh.zeros([1]);
      return [scope.disposed, () => scope.disposed] as const;
    });
    expect(forgotten[0]).toBe(false);
    expect(forgotten[1]()).toBe(true);
    expect(live()).toBe(0);

    const older = mh.scope();
    const first = mh.zeros([1]);
    const younger = mh.scope();
    const second = mh.zeros([2]);
    older.dispose();
    expect([first.disposed, second.disposed, younger.disposed]).toEqual([true, true, true]);
    older.dispose();
    younger.dispose();
    mh.zeros([3]);
    expect(live()).toBe(1);
  });

  it('refuses what is no function, proxies of tensors, and values after its end', () => {
    for (const given of [undefined, null, 7, {}, 'fn']) {
      expectRefused(mh, () => mh.scope(given as never), 'E_OPTION', 'scope', 'a function');
    }
    const scope = mh.scope();
    const tensor = mh.zeros([1]);
    expect(errorOf(() => scope.keep(new Proxy(tensor, {})))).toMatchObject({ code: 'E_OPTION' });
    expect(() =>
      scope.keep({
        get tensor() {
          throw new RangeError('no');
        },
      }),
    ).toThrow(RangeError);
    const disposing = {
      get tensor() {
        scope.dispose();
        return tensor;
      },
    };
    expect(errorOf(() => scope.keep(disposing))).toMatchObject({ code: 'E_DISPOSED', argument: 'scope' });
    expect(errorOf(() => scope.keep(tensor))).toMatchObject({ code: 'E_DISPOSED', argument: 'scope' });
    expect(live()).toBe(0);
    expectWorks(mh);
  });
});

describe('mh.dispose()', () => {
  const disposed = { name: 'MultiheadError', code: 'E_DISPOSED' };

  it('ends every object and every later call', () => {
    const tensor = mh.zeros([1, 2, 3, 4]);
    const view = mh.zeros([4]).data;
    const cache = mh.createCache({ numKvHeads: 2, headDim: 4, capacity: 8 });
    const module = mh.multiHeadAttention({ embedDim: 4, numHeads: 2 });
    const model = mh.transformer({ numLayers: 1, vocabSize: 5, embedDim: 4, numHeads: 2, maxPositions: 4 });
    model.initialize();
    const trainer = mh.trainer(model);
    const op = mh.prepare({ q: [1, 2, 3, 4], kvLengths: Int32Array.of(3) });
    const result = mh.attention(q, k, v, { return: ['lse'] });
    const rows = mh.scores(q, k, { stage: 'raw', chunk: 1 });
    rows.next();
    const scope = mh.scope();
    const { memory, dispose } = mh;
    expect(mh.disposed).toBe(false);
    dispose();
    expect(mh.disposed).toBe(true);
    expect(mh.backend.simd).toBe('simd128');
    expect([tensor, cache, module, model, trainer, op, result.out].map((each) => each.disposed)).toEqual(Array(7).fill(true));
    const calls: (() => unknown)[] = [
      () => mh.zeros([0]),
      () => mh.tensor([1], [1]),
      () => mh.tensor(view, [4]),
      () => mh.attention(q, k, v),
      () => mh.attention(tensor, tensor, tensor),
      () => mh.attentionBackward({ q, k, v, out: q, lse: plain(1, 2, 3), dOut: q }),
      () => mh.prepare({ q: [1, 1, 2, 4] }),
      () => mh.prepareBackward({ q: [1, 1, 2, 4] }),
      () => mh.scores(q, k, { stage: 'raw' }).next(),
      () => rows.next(),
      () => mh.attentionVarlen(packed, packed, packed, { cuQ: cu, cuK: cu }),
      () => mh.mergeAttention({ out: tensor, lse: tensor }, { out: q, lse: plain(1, 2, 3) }),
      () => mh.alibiSlopes(2),
      () => mh.rotate(q, Int32Array.of(0, 1, 2), { style: 'half' }),
      () => mh.linear(q, plain(4, 4)),
      () => headStatistics(mh, plain(2, 3, 3)),
      () => mh.multiHeadAttention({ embedDim: 4, numHeads: 2 }),
      () => mh.transformerBlock({ embedDim: 4, numHeads: 2 }),
      () => mh.transformer({ numLayers: 1, vocabSize: 5, embedDim: 4, numHeads: 2 }),
      () => mh.trainer(model),
      () => createExperiment(mh),
      () => mh.createCache({ numKvHeads: 2, headDim: 4, capacity: 8 }),
      () => mh.scope(() => 1),
      () => mh.scope(),
      () => memory(),
      () => tensor.data,
      () => tensor.toFloat32(),
      () => tensor.reshape([24]),
      () => cache.length(),
      () => cache.append(k, v),
      () => module.forward(plain(1, 3, 4)),
      () => module.stateDict(),
      () => model.forward(Int32Array.of(1)),
      () => trainer.step(Int32Array.of(1, 2), Int32Array.of(2, 3)),
      () => trainer.checkpoint(),
      () => op.run(tensor, tensor, tensor, tensor),
      () => op.setKvLengths(Int32Array.of(1)),
    ];
    for (const call of calls) expect(errorOf(call), String(call)).toMatchObject(disposed);
    for (const each of [tensor, cache, module, trainer, model, op, scope, mh]) each.dispose();
    result[Symbol.dispose]();
    expect(errorOf(() => mh.zeros([1])).message).toMatch(/load\(\) gives a new instance/);
  });

  it('by `using`, and after a trap', async () => {
    let tensor: Tensor;
    {
      using own = await loadBuild('simd128');
      tensor = own.zeros([2]);
    }
    expect(tensor.disposed).toBe(true);
    const { mh: dead } = await openBuild('simd128');
    new Uint8Array(dead.zeros([1]).data.buffer).fill(0xff);
    expect(errorOf(() => dead.createCache({ numKvHeads: 1, headDim: 4, capacity: 8 })).code).toBe('E_FATAL');
    dead.dispose();
    expect(errorOf(() => dead.zeros([1]))).toMatchObject(disposed);
  });

  it('makes load() give a new instance to the callers that share one', async () => {
    const fresh = await freshLoad('disposed');
    const shared = await fresh();
    expect(await fresh()).toBe(shared);
    shared.dispose();
    const next = await fresh();
    expect(next).not.toBe(shared);
    expectWorks(next);
    shared.dispose();
    expect(await fresh()).toBe(next);
    expectWorks(next);
  });

  it('leaves pools as they are', async () => {
    using pool = await createPool({ workers: 1 });
    (await load()).dispose();
    const { out } = await pool.attention(q, k, v);
    expect(out.data).toEqual(mh.scope(() => mh.attention(q, k, v).out.toFloat32()));
  });
});
