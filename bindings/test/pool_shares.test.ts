// Workers that each hold a share of a module's parameters: results are bit-identical to one thread; and their memory.

import { load, type Multihead, type MultiHeadAttentionConfig, type PlainTensor, type TransformerConfig } from 'multihead';
import { createPool, type Pool, type PoolTransformer } from 'multihead/pool';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { rejectionOf } from './builds.ts';
import { sameResults } from './pool_results.ts';
import { running } from './pool_threads.ts';
import { random, runSeed, type Random } from './random.ts';
import { chance, filled } from './random_case.ts';
import { described, parameters, resolved } from './random_module.ts';

let mh: Multihead;
const pools = new Map<number, Pool>();
beforeAll(async () => {
  mh = await load();
  for (const workers of [1, 2, 3, 5]) pools.set(workers, await createPool({ workers }));
});
afterAll(() => pools.forEach((pool) => pool.dispose()));

/**
 * A module wide enough that most of its matrices are divided. The number of heads need not be a multiple of the
 * workers.
 */
function wideModule(r: Random): MultiHeadAttentionConfig {
  const numKvHeads = r.int(1, 4);
  const numHeads = numKvHeads * r.pick([1, 2, 3]);
  const headDim = r.pick([8, 20, 32, 64]);
  return {
    ...{ embedDim: r.pick([40, 97, 160]), numHeads, numKvHeads, headDim },
    ...(chance(r, 0.3) && { valueDim: r.int(5, 40) }),
    ...(chance(r, 0.3) && { kdim: r.int(30, 90), vdim: r.int(30, 90) }),
    ...(chance(r, 0.3) && { addBiasKv: true }),
    ...(chance(r, 0.3) && { bias: false }),
    ...(chance(r, 0.3) && { qkNorm: true }),
    ...(chance(r, 0.2) && { outProj: false }),
  };
}

const half = ({ shape, data }: PlainTensor): PlainTensor<'bf16'> => {
  const bits = new Uint32Array(data.buffer, data.byteOffset, data.length);
  return { shape, dtype: 'bf16', data: Uint16Array.from(bits, (each) => each >>> 16) };
};

describe.each([1, 2, 3, 5])('in %s workers', (workers) => {
  test('random layers', async () => {
    const pool = pools.get(workers) as Pool;
    for (let seed = runSeed; seed < runSeed + 8; seed += 1) {
      const r = random(seed);
      const given = wideModule(r);
      const config = resolved(given);
      const label = `seed ${seed}, ${described(given)}`;
      const [local, remote] = [mh.multiHeadAttention(given), await pool.multiHeadAttention(given, { workers })];
      const loaded = parameters(r, config);
      const dict = chance(r, 0.3) ? Object.fromEntries(Object.entries(loaded).map(([name, tensor]) => [name, half(tensor)])) : loaded;
      local.loadStateDict(dict);
      await remote.loadStateDict(dict);
      const rows = r.pick([1, 3, 70]);
      const query = filled(r, 2, rows, config.embedDim);
      const crosses = config.kdim !== config.embedDim || config.vdim !== config.embedDim;
      const inputs = crosses ? { query, key: filled(r, 2, 9, config.kdim), value: filled(r, 2, 9, config.vdim) } : query;
      const options = { trace: chance(r, 0.3), return: chance(r, 0.5) ? (['weights'] as const) : [] };
      const forward = async (): Promise<void> => {
        const expected = local.forward(inputs, options);
        const { trace, ...actual } = (await remote.forward(inputs, options)) as Record<string, object>;
        const { trace: steps, ...results } = expected as unknown as Record<string, object>;
        sameResults(actual, results, label);
        expect(JSON.stringify(trace), label).toBe(JSON.stringify(steps));
        expected.output.dispose();
        (expected as { weights?: Disposable }).weights?.[Symbol.dispose]();
      };
      await forward();
      sameResults(await remote.stateDict(), local.stateDict(), label);
      // backward() gives every worker all parameters.
      const d = filled(r, 2, rows, config.outDim);
      const { parameters: ofParameters, ...gradients } = local.backward(inputs, d);
      const { parameters: theirs, ...others } = await remote.backward(inputs, d);
      sameResults(others, gradients, label);
      sameResults(theirs, ofParameters, label);
      await forward();
      if (!crosses && !config.addBiasKv) {
        await remote.loadStateDict(dict);
        const caches = [local.createCache({ batch: 2, capacity: 100 }), await remote.createCache({ batch: 2, capacity: 100 })] as const;
        for (const tokens of [5, 1, 2]) {
          const x = filled(r, 2, tokens, config.embedDim);
          const expected = local.step(x, caches[0]);
          const { output } = await remote.step(x, caches[1]);
          sameResults({ output }, { output: expected.output }, label);
          expected.output.dispose();
        }
        for (const cache of caches) cache.dispose();
      }
      Object.values(gradients).forEach((each) => each.dispose());
      for (const each of [local, remote]) each.dispose();
    }
  });

  test("a GPT-2's names, a trainer, and a load after it", async () => {
    const pool = pools.get(workers) as Pool;
    const config: TransformerConfig = {
      ...{ embedDim: 80, numHeads: 5, numLayers: 2, vocabSize: 501, maxPositions: 64, mlpDim: 200, tiedOutput: true },
    };
    const [local, remote] = [mh.transformer(config), await pool.transformer(config, { workers })];
    const names = { names: 'gpt2' } as const;
    local.initialize({ seed: 8, ...names });
    const plain = local.stateDict();
    const dict = Object.fromEntries(Object.entries(plain).map(([name, tensor]) => [`transformer.${name}`, tensor]));
    await remote.loadStateDict(dict, names);
    const tokens = Int32Array.from({ length: 40 }, (_, at) => (at * 97) % 501);
    const forward = async (label: string): Promise<void> => {
      const expected = local.forward(tokens, { batch: 2 });
      sameResults({ logits: (await remote.forward(tokens, { batch: 2 })).logits }, { logits: expected.logits }, label);
      expected.logits.dispose();
    };
    await forward('loaded');
    expect(Object.keys(await remote.stateDict()).sort()).toEqual(Object.keys(dict).sort());
    const [mine, theirs] = [mh.trainer(local), await pool.trainer(remote)];
    for (let step = 0; step < 2; step += 1) expect(await theirs.step(tokens, tokens)).toEqual(mine.step(tokens, tokens));
    await forward('trained');
    for (const each of [mine, theirs]) each.dispose();
    local.loadStateDict(plain, names);
    await remote.loadStateDict(plain, names);
    await forward('loaded again');
    for (const each of [local, remote]) each.dispose();
  });
});

const large: TransformerConfig = { embedDim: 512, numHeads: 8, numLayers: 3, vocabSize: 9000, mlpDim: 2048 };
const bytesOf = (dict: Record<string, PlainTensor>): number => Object.values(dict).reduce((sum, { data }) => sum + data.byteLength, 0);

test('a module of which only the values are divided', async () => {
  const config = { embedDim: 40, numHeads: 2, headDim: 32, valueDim: 34 };
  const r = random(6);
  const dict = parameters(r, resolved(config));
  const [local, remote] = [mh.multiHeadAttention(config), await (pools.get(2) as Pool).multiHeadAttention(config, { workers: 2 })];
  local.loadStateDict(dict);
  await remote.loadStateDict(dict);
  for (const rows of [1, 70]) {
    const x = filled(r, 2, rows, 40);
    const { output } = local.forward(x);
    sameResults({ output: (await remote.forward(x)).output }, { output }, `${rows} rows`);
    output.dispose();
  }
  for (const each of [local, remote]) each.dispose();
});

test('a load copies parameters once, and workers hold a share each', async () => {
  const model = mh.transformer(large);
  model.initialize();
  const dict = model.stateDict();
  const bytes = bytesOf(dict);
  const { heap } = mh.memory();
  model.dispose();
  // The disposed model has left free memory for one copy, and memory grows by at least a fifth.
  const next = mh.transformer(large);
  next.loadStateDict(dict);
  expect(mh.memory().heap - heap).toBeLessThan(0.5 * bytes);
  next.dispose();

  for (const workers of [1, 2, 3]) {
    using pool = await createPool({ workers });
    const remote = await pool.transformer(large, { workers: 'all' });
    for (const fill of [() => remote.initialize(), () => remote.loadStateDict(dict)]) {
      await fill();
      const memories = await Promise.all(Array.from({ length: workers }, () => pool.memory()));
      for (const memory of memories) expect(memory.bytes / bytes).toBeLessThan(1 / workers + 0.02);
      const sum = memories.reduce((all, memory) => all + memory.bytes, 0);
      expect(sum).toBeGreaterThanOrEqual(bytes);
    }
  }
});

test('a load that is refused, in part or by all workers, changes nothing', async () => {
  const pool = pools.get(3) as Pool;
  const config: TransformerConfig = { embedDim: 96, numHeads: 4, numLayers: 1, vocabSize: 300 };
  const model = await pool.transformer(config, { workers: 'all' });
  await model.initialize({ seed: 1 });
  const dict = await model.stateDict();
  const tokens = Int32Array.of(1, 2, 299);
  const { logits } = await model.forward(tokens);
  const short = dict['layers.0.linear1.weight'] ?? Object.values(dict)[0];
  const wrong = { shape: [1, 2], data: new Float32Array(2) };
  const { 'embedding.weight': _, ...missing } = dict;
  for (const bad of [missing, { ...dict, more: wrong }, { ...dict, 'embedding.weight': wrong }, { ...dict, x: short }]) {
    expect((await rejectionOf(model.loadStateDict(bad as never))).code).toBe('E_SHAPE');
    sameResults({ logits: (await model.forward(tokens)).logits }, { logits }, 'after a refused load');
  }
  const aborted = model.loadStateDict(dict, { signal: AbortSignal.abort() } as never);
  expect((await rejectionOf(aborted)).code).toBe('E_ABORTED');
  sameResults({ logits: (await model.forward(tokens)).logits }, { logits }, 'after an aborted load');
  // A load that has begun completes; calls that wait for it are rejected.
  const calls = [model.loadStateDict(dict), rejectionOf(model.forward(tokens))] as const;
  model.dispose();
  await calls[0];
  expect((await calls[1]).code).toBe('E_DISPOSED');
});

test('a getter that disposes a tensor of the dict, or detaches its numbers', () => {
  const config = { embedDim: 64, numHeads: 4, bias: false };
  const module = mh.multiHeadAttention(config);
  const r = random(5);
  const first = mh.zeros([192, 64]);
  const disposing = {
    in_proj_weight: first,
    get 'out_proj.weight'() {
      first.dispose();
      return filled(r, 64, 64);
    },
  };
  expect(() => module.loadStateDict(disposing)).toThrow(/dispose/);
  const weight = filled(r, 192, 64);
  const detaching = {
    in_proj_weight: weight,
    get 'out_proj.weight'() {
      structuredClone(weight.data, { transfer: [weight.data.buffer as ArrayBuffer] });
      return filled(r, 64, 64);
    },
  };
  expect(() => module.loadStateDict(detaching)).toThrow(/in_proj_weight/);
  const dict = { in_proj_weight: filled(r, 192, 64), 'out_proj.weight': filled(r, 64, 64) };
  module.loadStateDict(dict);
  sameResults(module.stateDict(), dict, 'loaded');
  module.dispose();
});

test('a worker that ends in the middle of a load', async () => {
  using pool = await createPool({ workers: 3 });
  const model = await pool.transformer(large, { workers: 'all' });
  await model.initialize();
  const dict = await model.stateDict();
  for (let round = 0; round < 4; round += 1) {
    const again: PoolTransformer = await pool.transformer(large, { workers: 'all' });
    const loading = again.loadStateDict(dict).then(
      () => 'loaded',
      (error: { code: string }) => error.code,
    );
    await new Promise((resolve) => setTimeout(resolve, 15 * round));
    await [...running].at(-1)?.terminate();
    expect(['loaded', 'E_WORKER']).toContain(await loading);
    again.dispose();
  }
  const next = await pool.transformer(large, { workers: 'all' });
  await next.loadStateDict(dict);
  expect((await next.forward(Int32Array.of(1, 2))).logits.shape).toEqual([1, 2, 9000]);
});
