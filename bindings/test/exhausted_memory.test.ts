// Allocation up to the limit of 4 GiB: blocks lie within the memory and do not overlap. When memory is exhausted, every
// call throws E_MEMORY, and works again after something is freed. Most of the memory is never touched, so that the
// system need not provide it.

import type { Multihead } from 'multihead';
import { describe, expect, it, vi } from 'vitest';
import { createExperiment } from '../src/api/lab.ts';
import type { RawModule } from '../src/runtime/raw.ts';
import { builds, errorOf, expectWorks, openBuild } from './builds.ts';

vi.spyOn(console, 'warn').mockImplementation(() => {});

type Uint32 = import('../src/types/wire.ts').Uint32;

interface Block {
  readonly address: Uint32;
  readonly bytes: number;
}

const allocate = (raw: RawModule, bytes: Uint32): Uint32 => (raw._multihead_allocate(bytes) >>> 0) as Uint32;

/** Allocates the whole memory, in blocks of decreasing size. */
function allocateAll(raw: RawModule): Block[] {
  const blocks: Block[] = [];
  for (let bytes = 2 ** 28; bytes >= 1; bytes /= 2) {
    const asked = bytes as Uint32;
    for (let address = allocate(raw, asked); address !== 0; address = allocate(raw, asked)) {
      blocks.push({ address, bytes });
    }
  }
  return blocks;
}

const full = (mh: Multihead): number => mh.memory().heap;

describe.each(builds)('memory near 4 GiB, %s', (simd) => {
  it('is handed out up to its end, in blocks that do not overlap', async () => {
    const { mh, raw } = await openBuild(simd);
    const blocks = allocateAll(raw).sort((a, b) => a.address - b.address);
    expect(full(mh)).toBeGreaterThan(4_000_000_000);
    expect(full(mh)).toBeLessThan(2 ** 32);
    const sum = blocks.reduce((bytes, block) => bytes + block.bytes, 0);
    expect(sum).toBeGreaterThan(full(mh) - 3 * 2 ** 20);
    let end = 0;
    for (const { address, bytes } of blocks) {
      expect(address).toBeGreaterThanOrEqual(end);
      end = address + bytes;
    }
    expect(end).toBeLessThanOrEqual(full(mh));

    expect(errorOf(() => mh.zeros([2 ** 26]))).toMatchObject({ code: 'E_MEMORY' });
    expect(errorOf(() => mh.zeros([1]))).toMatchObject({ code: 'E_MEMORY' });
    for (const { address } of blocks) raw._multihead_release(address);
    const big = mh.zeros([2 ** 22]);
    expect(big.data[2 ** 22 - 1]).toBe(0);
    expectWorks(mh);
  });

  it('holds tensors and caches up to its very end', async () => {
    const { mh, raw } = await openBuild(simd);
    const blocks: Block[] = [];
    for (const bytes of [2 ** 28, 2 ** 22]) {
      const asked = bytes as Uint32;
      for (let address = allocate(raw, asked); address !== 0; address = allocate(raw, asked)) {
        blocks.push({ address, bytes });
      }
    }
    // The newest block is the last in memory.
    const [last] = [...blocks].sort((a, b) => b.address - a.address);
    raw._multihead_release(last?.address ?? 0);
    const numbers = Float32Array.from({ length: 4096 }, (_, i) => Math.sin(i));
    const expected = await attended(numbers);
    mh.scope(() => {
      const x = mh.tensor(numbers, [1, 2, 128, 16]);
      const cache = mh.createCache({ numKvHeads: 2, headDim: 16, capacity: 128 });
      cache.append(x, x);
      const { out } = cache.attend(x, { causal: 'bottomRight' });
      expect(x.data.byteOffset).toBeGreaterThan(full(mh) - 16 * 2 ** 20);
      expect(out.data).toEqual(expected);
      expect(mh.attention(x, x, x, { causal: 'bottomRight' }).out.data).toEqual(expected);
    });
  });

  /** Runs attention in an instance with a separate memory. */
  async function attended(numbers: Float32Array): Promise<Float32Array> {
    const { mh } = await openBuild(simd);
    const x = mh.tensor(numbers, [1, 2, 128, 16]);
    return mh.attention(x, x, x, { causal: 'bottomRight' }).out.toFloat32();
  }

  it('when exhausted, refuses calls repeatedly with the right errors, and the next call works', async () => {
    const { mh, raw } = await openBuild(simd);
    const shape = [1, 2, 8, 4];
    const x = mh.tensor(new Float32Array(64).fill(0.5), shape);
    const out = mh.zeros(shape);
    const layer = mh.multiHeadAttention({ embedDim: 4, numHeads: 2 });
    const parameters = moduleParameters();
    layer.loadStateDict(parameters);
    const cache = mh.createCache({ numKvHeads: 2, headDim: 4, capacity: 16 });
    const past = layer.createCache({ capacity: 16 });
    const tokens = mh.tensor(new Float32Array(32), [1, 8, 4]);
    const op = mh.prepare({ q: shape });
    const { lse } = mh.attention(x, x, x, { return: ['lse'] });
    const model = mh.transformer({ numLayers: 1, vocabSize: 5, embedDim: 4, numHeads: 2 });
    model.initialize();
    const trainer = mh.trainer(model);
    const large = mh.transformer({ numLayers: 1, vocabSize: 100_000, embedDim: 4, numHeads: 2 });
    large.initialize();
    const experiment = createExperiment(mh, { batch: 1 });
    const [ids, many] = [new Int32Array(8), new Int32Array(4096)];
    trainer.step(ids, ids);
    const trained = trainer.stateDict();
    const inputs = { q: x, k: x, v: x, out: x, lse, dOut: x };
    const checkpoint = trainer.checkpoint();
    const bytes = trainer.bytes();
    const before = mh.memory();
    const blocks = allocateAll(raw);

    const long = 'a name that is much longer than any short string, '.repeat(4);
    const calls: [string, () => unknown][] = [
      ['E_OPTION', () => mh.attention(x, x, x, { out, scale: NaN })],
      ['E_OPTION', () => cache.attend(x, { out, softcap: -1 })],
      ['E_OPTION', () => cache.truncate(12, 0)],
      ['E_OPTION', () => past.truncate(-3)],
      ['E_OPTION', () => mh.multiHeadAttention({ embedDim: 8, numHeads: 4, numKvHeads: 3 })],
      ['E_OPTION', () => mh.prepare({ q: shape, scale: NaN })],
      ['E_OPTION', () => op.run(x, x, x, x)],
      ['E_OPTION', () => trainer.setLearningRate(0)],
      ['E_OPTION', () => experiment.heldOut(2 ** 21, 1)],
      ['E_OPTION', () => trainer.step(ids, ids, { batch: 0 })],
      ['E_MEMORY', () => mh.zeros([1])],
      ['E_MEMORY', () => mh.attention(x, x, x)],
      ['E_MEMORY', () => mh.attention(x, x, x, { out, capture: [{ stage: 'raw' }] })],
      ['E_MEMORY', () => mh.attention(x, x, x, { out, sinks: new Float32Array(2) })],
      ['E_MEMORY', () => mh.attentionBackward(inputs)],
      ['E_MEMORY', () => mh.attentionBackward(inputs, { out: { dQ: out }, return: ['dQ'], qkNorm: {} })],
      ['E_MEMORY', () => mh.createCache({ numKvHeads: 8, headDim: 64, capacity: 4096 })],
      ['E_MEMORY', () => layer.loadStateDict({ ...parameters, [long]: parameters.in_proj_bias })],
      ['E_MEMORY', () => layer.loadStateDict(parameters)],
      ['E_MEMORY', () => layer.forward(tokens, { trace: true })],
      ['E_MEMORY', () => layer.backward(tokens, tokens)],
      ['E_MEMORY', () => large.initialize()],
      ['E_MEMORY', () => mh.trainer(large)],
      ['E_MEMORY', () => trainer.restore(checkpoint)],
      ['E_MEMORY', () => createExperiment(mh, { numLayers: 64 })],
      ['E_MEMORY', () => experiment.evaluate({ sequences: 64 })],
      ['E_MEMORY', () => experiment.heldOut(0, 2 ** 16)],
      ['E_MEMORY', () => [...mh.scores(x, x, { stage: 'raw' })]],
    ];
    for (let round = 0; round < 20; round += 1) {
      for (const [code, call] of calls) {
        const error = errorOf(call);
        // Memory may run out before a call has checked its options.
        expect([code, 'E_MEMORY'], error.message).toContain(error.code);
        expect(error.message.length).toBeGreaterThan(20);
      }
    }
    expect(mh.memory()).toMatchObject({ live: before.live, bytes: before.bytes });
    // The core frees a buffer before it allocates a larger one, so the trainer may hold less than before.
    expect(errorOf(() => trainer.step(many, many)).code).toBe('E_MEMORY');
    expect(mh.memory().bytes).toBe(before.bytes - bytes + trainer.bytes());
    for (const { address } of blocks) raw._multihead_release(address);
    for (const [code, call] of calls.slice(0, 9)) expect(errorOf(call).code).toBe(code);
    expect(trainer.stateDict()).toEqual(trained);
    trainer.step(many, many);
    layer.loadStateDict(parameters);
    expect(layer.forward(tokens).output.shape).toEqual([1, 8, 4]);
    expectWorks(mh);
  });
});

function moduleParameters() {
  const tensor = (...shape: number[]) => ({
    shape,
    data: new Float32Array(shape.reduce((a, b) => a * b)).fill(0.1),
  });
  return {
    in_proj_weight: tensor(12, 4),
    in_proj_bias: tensor(12),
    'out_proj.weight': tensor(4, 4),
    'out_proj.bias': tensor(4),
  };
}
