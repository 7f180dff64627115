// Objects that live in one worker or in a team: results are bit-identical to one thread, and no object is left behind.

import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { inspect, promisify } from 'node:util';
import { load, type Multihead, type PlainTensor, type Tensor, type TransformerConfig } from 'multihead';
import { createExperiment } from 'multihead/lab';
import { createPool, type Pool } from 'multihead/pool';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { rejectionOf } from './builds.ts';
import { running } from './pool_threads.ts';
import { random } from './random.ts';
import { filled } from './random_case.ts';

let mh: Multihead;
let pool: Pool;
beforeAll(async () => {
  mh = await load();
  pool = await createPool({ workers: 3 });
});
afterAll(() => pool.dispose());

const bytesOf = ({ data }: { data: ArrayBufferView }): Buffer => Buffer.from(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength);
function sameBits(actual: PlainTensor | undefined, expected: Tensor | PlainTensor | undefined): void {
  expect(actual?.shape).toEqual([...(expected?.shape ?? [])]);
  expect(bytesOf(actual as PlainTensor).equals(bytesOf(expected as PlainTensor))).toBe(true);
}

test('objects of a disposed pool say that they are disposed, and objects of the pool show what they are', async () => {
  const other = await createPool({ workers: 1 });
  const objects = [
    await other.createCache({ numKvHeads: 1, headDim: 4, capacity: 4 }),
    await other.multiHeadAttention({ embedDim: 4, numHeads: 2 }),
    await other.transformer({ numLayers: 1, vocabSize: 5, embedDim: 8, numHeads: 2 }),
  ];
  const [single] = objects;
  expect(objects.map(({ disposed }) => disposed)).toEqual([false, false, false]);
  single?.dispose();
  expect(objects.map(({ disposed }) => disposed)).toEqual([true, false, false]);
  expect([other, ...objects].map((each) => inspect(each))).toEqual([
    ...['a pool', 'an object of a pool (createCache)', 'an object of a pool (multiHeadAttention)', 'an object of a pool (transformer)'],
  ]);
  other.dispose();
  expect(objects.map(({ disposed }) => disposed)).toEqual([true, true, true]);
  for (const each of objects) each.dispose();
  expect(await rejectionOf((objects[1] as { stateDict(): Promise<unknown> }).stateDict())).toMatchObject({ code: 'E_DISPOSED' });
});

/** Replaces each array by a hash, because Vitest takes seconds to compare large arrays. */
const hashed = (value: unknown): string =>
  JSON.stringify(value, (_, each: unknown) => (each instanceof Float32Array ? createHash('sha256').update(each).digest('hex') : each));

interface Outputs<T> {
  readonly logits: T;
  readonly hidden?: T;
  readonly traces?: unknown;
}

const configs: Record<string, TransformerConfig> = {
  'GPT-2': {
    ...{ embedDim: 512, numHeads: 8, numLayers: 2, vocabSize: 5003, maxPositions: 400 },
    ...{ mlpDim: 512, activation: 'geluTanh', tiedOutput: true },
  },
  Llama: {
    ...{ embedDim: 192, numHeads: 6, numKvHeads: 3, numLayers: 2, vocabSize: 4000, norm: 'rmsNorm', bias: false },
    ...{ mlpDim: 500, gated: true, activation: 'silu', rope: { style: 'half' }, qkNorm: true, window: { left: 100 } },
  },
  'latent attention': {
    ...{ embedDim: 128, numHeads: 4, numLayers: 1, vocabSize: 4000, kvLatentDim: 32, ropeHeadDim: 16, bias: false },
    ...{ norm: 'rmsNorm', rope: { style: 'interleaved' } },
  },
};

describe.each([1, 2, 3])('a transformer in %s workers', (workers) => {
  test.each(Object.keys(configs))('%s: forward and steps', async (name) => {
    const config = configs[name] as TransformerConfig;
    const [local, remote] = [mh.transformer(config), await pool.transformer(config, { workers })];
    expect(remote.config).toEqual(local.config);
    local.initialize({ seed: 5 });
    await remote.initialize({ seed: 5 });
    const tokens = Int32Array.from({ length: 2 * 150 }, (_, at) => (at * 37) % 4000);
    const options = { batch: 2, return: ['logits', 'hidden'], trace: ['weights'] } as const;
    for (const chosen of [options, { batch: 2 }] as const) {
      const expected = local.forward(tokens, chosen) as Outputs<Tensor>;
      const actual = (await remote.forward(tokens, chosen)) as Outputs<PlainTensor>;
      sameBits(actual.logits, expected.logits);
      if (expected.hidden !== undefined) sameBits(actual.hidden, expected.hidden);
      expect(hashed(actual.traces)).toBe(hashed(expected.traces));
      expected.logits.dispose();
      expected.hidden?.dispose();
    }

    const layout = name === 'GPT-2' ? ({ layout: 'paged', pageSize: 16, dtype: 'f16' } as const) : {};
    const kept = { capacity: 400, ...layout };
    const caches = [local.createCache(kept), await remote.createCache(kept)] as const;
    expect(caches[1].capacity).toBe(400);
    for (const part of [tokens.subarray(0, 140), tokens.subarray(140, 141), tokens.subarray(141, 145)]) {
      const expected = local.step(part, caches[0]).logits;
      sameBits((await remote.step(part, caches[1])).logits, expected);
      expected.dispose();
    }
    expect(await caches[1].length()).toBe(145);
    await caches[1].truncate(10);
    expect(await caches[1].length()).toBe(10);
    for (const each of [local, remote, ...caches]) each.dispose();
  });

  test('a trainer gives the same curve and checkpoint', async () => {
    const small = { embedDim: 64, numHeads: 4, numLayers: 1, vocabSize: 1000 };
    const config: TransformerConfig = { ...small, rope: { style: 'half' } };
    const [local, remote] = [mh.transformer(config), await pool.transformer(config, { workers })];
    local.initialize({ seed: 2 });
    await remote.initialize({ seed: 2 });
    const rate = { learningRate: 1e-2 };
    const [mine, theirs] = [mh.trainer(local, rate), await pool.trainer(remote, rate)];
    const tokens = Int32Array.from({ length: 256 }, (_, at) => (at * at) % 1000);
    for (let step = 0; step < 4; step += 1) {
      expect(await theirs.step(tokens, tokens, { batch: 4 })).toEqual(mine.step(tokens, tokens, { batch: 4 }));
    }
    expect(Buffer.from(await theirs.checkpoint()).equals(Buffer.from(mine.checkpoint()))).toBe(true);
    expect(await theirs.steps()).toBe(4);
    await theirs.restore(mine.checkpoint());
    for (const each of [mine, local, theirs, remote]) each.dispose();
  });

  test('a layer with parameters of the caller', async () => {
    const r = random(3);
    const config = { embedDim: 96, numHeads: 6, numKvHeads: 2 };
    const [local, remote] = [mh.multiHeadAttention(config), await pool.multiHeadAttention(config, { workers })];
    const dict = {
      in_proj_weight: filled(r, 96 + 64, 96),
      in_proj_bias: filled(r, 96 + 64),
      'out_proj.weight': filled(r, 96, 96),
      'out_proj.bias': filled(r, 96),
    };
    local.loadStateDict(dict);
    await remote.loadStateDict(dict);
    const x = filled(r, 2, 200, 96);
    const expected = local.forward(x, { causal: 'topLeft', return: ['weights'] });
    const actual = await remote.forward(x, { causal: 'topLeft', return: ['weights'] });
    sameBits(actual.output, expected.output);
    sameBits(actual.weights, expected.weights);
    const plain = local.forward(x, { causal: 'topLeft' });
    sameBits((await remote.forward(x, { causal: 'topLeft' })).output, plain.output);
    for (const [key, tensor] of Object.entries(await remote.stateDict())) {
      sameBits(tensor, dict[key as keyof typeof dict]);
    }
    expect((await rejectionOf(remote.forward(filled(r, 2, 3, 95)))).message).toMatch(/96/);
    sameBits((await remote.forward(x, { causal: 'topLeft' })).output, plain.output);
    for (const each of [expected.output, expected.weights, plain.output, local, remote]) each.dispose();
  });
});

test('a cache of keys and values', async () => {
  const r = random(4);
  const config = { batch: 1, numKvHeads: 2, headDim: 16, capacity: 64, dtype: 'int8' } as const;
  const [local, remote] = [mh.createCache(config), await pool.createCache(config)];
  expect([remote.numKvHeads, remote.dtype, remote.valueDim]).toEqual([2, 'int8', 16]);
  const [k, v, q] = [filled(r, 1, 2, 20, 16), filled(r, 1, 2, 20, 16), filled(r, 1, 4, 1, 16)];
  local.append(k, v);
  await remote.append(k, v);
  const expected = local.attend(q, { return: ['lse'] });
  const actual = await remote.attend(q, { return: ['lse'] });
  sameBits(actual.out, expected.out);
  sameBits(actual.lse, expected.lse);
  await remote.truncate(7, 0);
  expect([await remote.length(), await remote.firstKept()]).toEqual([7, 0]);
  for (const each of [local, remote, expected.out, expected.lse]) each.dispose();
  expect((await rejectionOf(remote.length())).code).toBe('E_DISPOSED');
});

test('an experiment and the operations that run whole', async () => {
  const options = { kind: 'induction', steps: 3 } as const;
  const [local, remote] = [createExperiment(mh, options), await pool.experiment(options)];
  expect(remote.patterns).toEqual([...local.patterns]);
  for (let step = 0; step < 3; step += 1) expect(await remote.step()).toEqual(local.step());
  for (const each of [local, remote]) each.dispose();
  const r = random(8);
  const [x, weight] = [filled(r, 5, 12), filled(r, 7, 12)];
  const y = mh.linear(x, weight);
  sameBits(await pool.linear(x, weight), y);
  const rotated = mh.rotate(filled(random(9), 1, 2, 3, 8), Int32Array.of(4, 5, 6), { style: 'half' });
  sameBits(await pool.rotate(filled(random(9), 1, 2, 3, 8), Int32Array.of(4, 5, 6), { style: 'half' }), rotated);
  for (const each of [y, rotated]) each.dispose();
  expect((await pool.memory()).heap).toBeGreaterThan(0);
});

test('objects of different workers are not mixed', async () => {
  const config = configs['GPT-2'] as TransformerConfig;
  const [one, two] = await Promise.all([pool.transformer(config), pool.transformer(config)]);
  await Promise.all([one.initialize(), two.initialize()]);
  const cache = await one.createCache({ capacity: 4 });
  expect((await rejectionOf(two.step(Int32Array.of(1), cache))).message).toMatch(/worker/);
  one.dispose();
  expect((await rejectionOf(one.stateDict())).code).toBe('E_DISPOSED');
  for (const each of [two, cache]) each.dispose();
});

test('a member of a team that ends gives up the call, and the others work on', async () => {
  const config = { ...(configs['GPT-2'] as TransformerConfig), embedDim: 512, numHeads: 8, numLayers: 6 };
  const model = await pool.transformer(config, { workers: 'all' });
  await model.initialize();
  const tokens = Int32Array.from({ length: 350 }, (_, at) => at);
  const calls = [rejectionOf(model.forward(tokens)), rejectionOf(model.forward(tokens))];
  await new Promise((resolve) => setTimeout(resolve, 60));
  await [...running][1]?.terminate();
  for (const error of await Promise.all(calls)) expect(error.code).toBe('E_WORKER');
  expect((await rejectionOf(model.forward(tokens))).message).toContain('lost');
  const next = await pool.transformer(config, { workers: 'all' });
  await next.initialize();
  expect((await next.forward(tokens.subarray(0, 10))).logits.shape).toEqual([1, 10, 5003]);
  model.dispose();
  next.dispose();
});

test('a call of a team that is aborted is over at once, and the team works on', async () => {
  const config = configs['GPT-2'] as TransformerConfig;
  const model = await pool.transformer(config, { workers: 'all' });
  await model.initialize({ seed: 3 });
  const tokens = Int32Array.from({ length: 300 }, (_, at) => at);
  const { logits } = await model.forward(tokens);
  const controller = new AbortController();
  const calls = [1, 2, 3].map(() => rejectionOf(model.forward(tokens, { signal: controller.signal })));
  setTimeout(() => controller.abort(), 3);
  for (const error of await Promise.all(calls)) expect(error.code).toBe('E_ABORTED');
  sameBits((await model.forward(tokens)).logits, logits);
  model.dispose();
});

test('calls of a team that wait when they are aborted are not run', async () => {
  const model = await pool.transformer(configs['GPT-2'] as TransformerConfig, { workers: 'all' });
  await model.initialize();
  const cache = await model.createCache({ capacity: 400 });
  const tokens = Int32Array.from({ length: 100 }, (_, at) => at);
  const controller = new AbortController();
  const { signal } = controller;
  const first = model.step(tokens, cache);
  const aborted = [1, 2].map(() => rejectionOf(model.step(tokens, cache, { signal })));
  const last = model.step(tokens.subarray(0, 3), cache);
  await new Promise((resolve) => setTimeout(resolve, 5));
  controller.abort();
  for (const error of await Promise.all(aborted)) expect(error.code).toBe('E_ABORTED');
  await Promise.all([first, last]);
  expect(await cache.length()).toBe(103);
  for (const each of [cache, model]) each.dispose();
});

test('proxies and pools that nobody holds are freed, and their calls settle', async () => {
  const script = `
    import { createPool } from 'multihead/pool';
    const pool = await createPool({ workers: 1 });
    const collect = async (done) => {
      for (let round = 0; round < 300 && !(await done(round)); round += 1) {
        globalThis.gc();
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
    };
    const config = { embedDim: 64, numHeads: 4, numLayers: 1, vocabSize: 100 };
    const settled = [];
    await (async () => {
      for (let i = 0; i < 5; i += 1) {
        const model = await pool.transformer(config);
        settled.push(model.initialize().then(() => 'done'));
      }
    })();
    await Promise.all(settled);
    await collect(async () => (await pool.memory()).live === 0);
    const after = (await pool.memory()).live;
    let calls;
    await (async () => {
      const dropped = await createPool({ workers: 2 });
      const x = { shape: [1, 2, 64, 16], data: new Float32Array(2048) };
      calls = [1, 2, 3].map(() => dropped.attention(x, x, x).then(() => 'done', (error) => error.code));
    })();
    await collect((round) => round === 30);
    console.log(JSON.stringify({ after, settled: await Promise.all(settled), calls: await Promise.all(calls) }));`;
  const cwd = fileURLToPath(new URL('..', import.meta.url));
  const args = ['--expose-gc', '--input-type=module', '-e', script];
  const { stdout } = await promisify(execFile)(process.execPath, args, { cwd });
  const [done3, done5] = [Array(3).fill('done'), Array(5).fill('done')];
  expect(JSON.parse(stdout)).toEqual({ after: 0, settled: done5, calls: done3 });
});
