import type { Multihead } from 'multihead';
import { createExperiment, headStatistics } from 'multihead/lab';
import { beforeEach, describe, expect, it, vi } from 'vitest';
import type { Uint32 } from '../src/types/wire.ts';
import { builds, expectRefused, expectWorks, loadBuild, openBuild } from './builds.ts';

// These tests leave tensors to the garbage collector, which garbage.test.ts covers.
vi.spyOn(console, 'warn').mockImplementation(() => {});

describe.each(builds)('memory, %s', (simd) => {
  let mh: Multihead;
  beforeEach(async () => {
    mh = await loadBuild(simd);
  });

  it('counts tensors, their bytes, and the peak', () => {
    const { heap } = mh.memory();
    expect(mh.memory()).toEqual({ live: 0, bytes: 0, peak: 0, heap, gpu: 0 });
    const a = mh.zeros([10]);
    const b = mh.tensor(new Uint8Array(3), [3]);
    expect(mh.memory()).toEqual({ live: 2, bytes: 43, peak: 43, heap, gpu: 0 });
    a.dispose();
    b.dispose();
    expect(mh.memory()).toEqual({ live: 0, bytes: 0, peak: 43, heap, gpu: 0 });
  });

  it('does not leak in 100 rounds', () => {
    const round = (): void => {
      mh.scope(() => {
        const x = mh.tensor(new Float32Array(2048).fill(0.5), [1, 2, 64, 16]);
        const { out, lse, weights } = mh.attention(x, x, x, { return: ['lse', 'weights'] });
        expect(out.size + weights.size).toBe(2048 + 8192);
        const inputs = { q: x, k: x, v: { shape: x.shape, data: x.toFloat32() }, out, lse, dOut: out };
        const normed = mh.attention(x, x, x, { qkNorm: {}, return: ['lse'] });
        mh.attentionBackward({ ...inputs, ...normed }, { qkNorm: {}, return: ['dQ', 'dQGain'] });
        expect(() => mh.attentionBackward(inputs, { return: ['dK', 'dBias', 'dSinks'] })).toThrow();
        const square = { shape: [16, 16], data: new Float32Array(256) };
        const module = mh.multiHeadAttention({ embedDim: 16, numHeads: 4, bias: false });
        expect(() => module.loadStateDict({ in_proj_weight: square })).toThrow();
        const inProj = { shape: [48, 16], data: new Float32Array(768) };
        module.loadStateDict({ in_proj_weight: inProj, 'out_proj.weight': square });
        module.loadStateDict({ ...module.stateDict(), 'out_proj.weight': square });
        const tokens = { shape: [1, 8, 16], data: new Float32Array(128) };
        const seen = module.forward(tokens, { trace: true, return: ['weights', 'meanWeights'] });
        headStatistics(mh, seen.weights, { tokens: new Int32Array(8) });
        module.backward(tokens, tokens, { causal: 'topLeft' });
        expect(() => module.backward(tokens, square)).toThrow();
        const model = mh.transformer({ numLayers: 1, vocabSize: 9, embedDim: 16, numHeads: 4 });
        model.initialize();
        const trainer = mh.trainer(model, { recompute: true });
        trainer.step(new Int32Array(8), new Int32Array(8), { batch: 2 });
        expect(() => trainer.step(new Int32Array(8), new Int32Array(9))).toThrow();
        trainer.restore(trainer.checkpoint());
        expect(() => trainer.loadStateDict(model.stateDict())).toThrow();
        const experiment = createExperiment(mh, { batch: 1 });
        experiment.step();
        experiment.model.forward(experiment.heldOut(0, 1).tokens);
        const past = module.createCache({ capacity: 8 });
        module.step(tokens, past, { trace: ['scores'], heads: { scales: new Float32Array(4) } });
        expect(() => module.step(tokens, past, { trace: true })).toThrow();
        expect(() => mh.attention(x, x, x, { scale: NaN })).toThrow();
        mh.attention(x, x, x, {
          ...{ kvLengths: new Int32Array([9]), alibi: true, sinks: new Float32Array(2) },
          ...{ rope: { style: 'half' }, qkNorm: {}, outDtype: 'f16', capture: [{ stage: 'raw' }] },
        });
        const bias = { shape: [1, 16], data: new Float32Array(16) };
        const prepared = { q: x.shape, bias, sinks: new Float32Array(2), keys: 16 };
        const op = mh.prepare(prepared);
        const key = mh.zeros(op.shapes.k);
        op.run(x, key, key, out);
        expect(() => mh.prepare({ ...prepared, scale: NaN })).toThrow();
        mh.prepareBackward({ ...prepared, out: { dBias: mh.zeros([1, 16]) } });
        expect(() => mh.prepareBackward(prepared)).toThrow();
        const cache = mh.createCache({ numKvHeads: 2, headDim: 16, capacity: 64, layout: 'paged' });
        cache.append(x, mh.rotate(x, new Int32Array(64), { style: 'half' }));
        cache.attend(x, { causal: 'bottomRight' });
        expect(() => cache.append(x, x)).toThrow();
        for (const { firstRow } of mh.scores(x, x, { stage: 'weights', chunk: 8 })) {
          if (firstRow > 16) break;
        }
        const part = mh.attention(x, x, x, { return: ['lse'] });
        mh.mergeAttention(part, mh.attention(x, x, x, { return: ['lse'] }));
      });
    };
    round();
    const { heap } = mh.memory();
    for (let i = 0; i < 100; i += 1) round();
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0, heap });
  });

  it('renews views after the memory has grown', () => {
    const small = mh.tensor(new Float32Array([1, 2, 3, 4]), [4]);
    const bool = mh.tensor(new Uint8Array([0, 1]), [2]);
    const view = small.data;
    expect(small.data).toBe(view);
    const { heap } = mh.memory();
    const big = mh.zeros([heap / 4]);
    expect(mh.memory().heap).toBeGreaterThan(heap);
    expect(view).toHaveLength(0);
    expect([...small.data]).toEqual([1, 2, 3, 4]);
    expect([...bool.data]).toEqual([0, 1]);
    small.data[0] = 9;
    expect(small.data[0]).toBe(9);
    big.dispose();
    expectWorks(mh);
  });

  it('copies as many elements as it has counted of a shared buffer that another thread makes longer', async () => {
    const growable = (length: number): { view: Float32Array; grow(): void } => {
      const Growable = SharedArrayBuffer as unknown as new (bytes: number, most: object) => SharedArrayBuffer & { grow(bytes: number): void };
      const buffer = new Growable(4 * length, { maxByteLength: 2 ** 16 });
      return { view: new Float32Array(buffer), grow: () => buffer.grow(buffer.byteLength + 64) };
    };
    let whileAllocating = (): void => {};
    const { mh } = await openBuild(simd, (raw) => ({
      ...raw,
      get HEAPU8() {
        return raw.HEAPU8;
      },
      _multihead_allocate(bytes: Uint32) {
        whileAllocating();
        return raw._multihead_allocate(bytes);
      },
    }));
    const shared = growable(4);
    shared.view.set([1, 2, 3, 4]);
    whileAllocating = () => shared.grow();
    const made = mh.tensor(shared.view, [2, 2]);
    expect([...made.data]).toEqual([1, 2, 3, 4]);
    expect(mh.memory()).toMatchObject({ live: 1, bytes: 16 });
    made.dispose();

    const integers = growable(3);
    const positions = new Int32Array(integers.view.buffer);
    const x = mh.tensor(new Float32Array(12).fill(1), [1, 1, 3, 4]);
    whileAllocating = () => integers.grow();
    mh.scope(() => expect([...mh.rotate(x, positions, { style: 'half' }).data]).toEqual([...x.data]));
    expect(positions.length).toBeGreaterThan(3);
    whileAllocating = () => {};
    x.dispose();
    const model = mh.transformer({ numLayers: 1, vocabSize: 9, embedDim: 16, numHeads: 4 });
    model.initialize();
    const trainer = mh.trainer(model);
    const tokens = growable(4);
    whileAllocating = () => tokens.grow();
    expect(trainer.step(new Int32Array(tokens.view.buffer), new Int32Array(4)).counted).toBe(4);
    whileAllocating = () => {};
    for (const each of [trainer, model]) each.dispose();
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
    expectWorks(mh);
  });

  it('copies from a view of its own memory, even if the memory grows during the copy', () => {
    const source = mh.zeros([mh.memory().heap / 8]);
    source.data.fill(3);
    const { heap } = mh.memory();
    const copies = [];
    while (mh.memory().heap === heap) copies.push(mh.tensor(source.data, source.shape));
    expect(copies.at(-1)?.data.every((x) => x === 3)).toBe(true);
  });

  it.each([
    ['more than can be addressed', [2 ** 30, 2 ** 30, 2 ** 30]],
    ['4 GiB, which a 32-bit size would take for 0', [2 ** 30]],
    ['a little more than 4 GiB', [2 ** 30 + 16]],
    ['more than the memory may grow to', [2 ** 30 - 64]],
  ])('refuses %s, and goes on', (_, shape) => {
    const bytes = shape.reduce((a, b) => a * b, 4);
    expectRefused(mh, () => mh.zeros(shape), 'E_MEMORY', 'zeros', String(bytes), String(mh.memory().heap));
  });
});
