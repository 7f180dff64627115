// Random calls of every pool operation except attention(), attentionVarlen() and their gradients: bit-identical to one
// thread, or the same error, with 1, 2, 3 and 5 workers.

import {
  load,
  type LatentAttentionInputs,
  type Multihead,
  type ScoresOptions,
  type StateDict,
  type TransformerBlockConfig,
  type TransformerConfig,
} from 'multihead';
import { createExperiment, headStatistics } from 'multihead/lab';
import { createPool, type Pool } from 'multihead/pool';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { sameOfBoth } from './pool_results.ts';
import { random, runSeed, type Random } from './random.ts';
import { caseCount, chance, filled, randomBias, randomDropout, randomMask, randomScoring } from './random_case.ts';
import { described } from './random_module.ts';

let mh: Multihead;
const pools: Pool[] = [];
beforeAll(async () => {
  mh = await load();
  for (const workers of [1, 2, 3, 5]) pools.push(await createPool({ workers, leastWork: 1 }));
  // With messages, an object lives in one worker.
  pools.push(await createPool({ workers: 3, leastWork: 1, exchange: 'messages' }));
});
afterAll(() => pools.forEach((pool) => pool.dispose()));

const all = { workers: 'all' } as const;
/** A matrix of at least 128 rows is divided; other widths have no special divisors. */
const widths = [24, 65, 160, 200] as const;

/** Compares one case in a pool; counts the calls that gave results. */
type Compare = (local: () => unknown, remote: () => Promise<unknown>, what: string) => Promise<boolean>;
type Verb = (pool: Pool, r: Random, compare: Compare) => Promise<void>;

function blockConfig(r: Random): TransformerBlockConfig {
  const latent = chance(r, 0.15);
  const numKvHeads = r.int(1, 4);
  const numHeads = numKvHeads * r.pick([1, 2]);
  const hasMlp = chance(r, 0.8);
  return {
    ...{ embedDim: r.pick(widths), numHeads, headDim: r.pick(latent ? [16, 22] : [8, 16, 22]) },
    ...(latent
      ? { kvLatentDim: r.pick([16, 40]), ropeHeadDim: 8, rope: { style: 'interleaved' }, bias: false, ...(chance(r, 0.5) && { qLatentDim: 24 }) }
      : {
          numKvHeads,
          ...(chance(r, 0.3) && { valueDim: r.int(5, 40) }),
          ...(chance(r, 0.3) && { qkNorm: true }),
          ...(chance(r, 0.3) && { sinks: true }),
        }),
    ...(!latent && chance(r, 0.4) && { rope: { style: r.pick(['half', 'interleaved'] as const) } }),
    ...(chance(r, 0.3) && { window: { left: 9 } }),
    ...(chance(r, 0.2) && { softcap: 4 }),
    ...(!latent && chance(r, 0.3) && { bias: false }),
    ...(hasMlp && {
      mlpDim: r.pick(widths),
      activation: r.pick(['relu', 'gelu', 'geluTanh', 'silu'] as const),
      gated: chance(r, 0.4),
      mlpBias: chance(r, 0.7),
    }),
    ...{ norm: r.pick(['layerNorm', 'rmsNorm', 'none'] as const), normFirst: chance(r, 0.7), normAffine: chance(r, 0.8) },
    ...(chance(r, 0.3) && { dropout: 0.2, residualDropout: 0.1 }),
  };
}

function modelConfig(r: Random): TransformerConfig {
  const tiedOutput = chance(r, 0.3);
  return {
    ...blockConfig(r),
    ...{ numLayers: r.int(1, 2), vocabSize: r.pick([40, 131, 700]), tiedOutput },
    ...(chance(r, 0.5) && { maxPositions: 64 }),
    ...(!tiedOutput && chance(r, 0.2) && { numReadouts: 2 }),
    ...(chance(r, 0.3) && { embeddingDropout: 0.1, finalNorm: false }),
    ...(chance(r, 0.15) && { causal: false }),
  };
}

const tokensOf = (r: Random, count: number, vocabSize: number): Int32Array => Int32Array.from({ length: count }, () => r.int(0, vocabSize - 1));

/** Options that change the result of a forward pass. */
const forwardOptions = (r: Random, heads: number, layers: number) => ({
  ...(chance(r, 0.3) && { training: true, dropoutSeed: 7n }),
  ...(chance(r, 0.3) && { heads: { scales: r.floats(heads * layers) } }),
  ...(chance(r, 0.3) && { trace: r.pick([['weights'], ['scores', 'headsOut'], true] as const) }),
});

const kept = (r: Random, batch: number) => ({
  ...{ batch, capacity: 48, dtype: r.pick(['f32', 'f16', 'bf16', 'int8'] as const) },
  ...(chance(r, 0.4) && { layout: 'paged' as const, pageSize: 5 }),
});

const verbs: Record<string, Verb> = {
  async linear(pool, r, compare) {
    const [width, rows] = [r.pick(widths), r.int(1, 70)];
    const [x, weight] = [filled(r, ...[2, 3].slice(0, r.int(0, 2)), rows, width), filled(r, r.pick(widths), width)];
    const options = chance(r, 0.5) ? { bias: filled(r, weight.shape[0] as number) } : {};
    await compare(
      () => mh.linear(x, weight, options),
      () => pool.linear(x, weight, options),
      'linear',
    );
  },

  async rotate(pool, r, compare) {
    const [batch, tokens, width] = [r.int(1, 2), r.int(1, 9), r.pick([8, 16])];
    const x = filled(r, batch, r.int(1, 3), tokens, width);
    const positions = Int32Array.from({ length: chance(r, 0.5) ? tokens : batch * tokens }, () => r.int(0, 999));
    const rope = { style: r.pick(['half', 'interleaved'] as const), ...(chance(r, 0.5) && { rotaryDim: 4 }) };
    await compare(
      () => mh.rotate(x, positions, rope),
      () => pool.rotate(x, positions, rope),
      'rotate',
    );
  },

  async latentAttention(pool, r, compare) {
    const [batch, heads, queries, keys] = [r.int(1, 2), r.int(1, 4), r.int(1, 20), r.int(1, 40)];
    const [nope, rope, rank, value] = [r.pick([8, 12]), r.pick([4, 8]), r.pick([16, 33]), r.pick([7, 16])];
    const inputs: LatentAttentionInputs = {
      ...{ qNope: filled(r, batch, heads, queries, nope), qRope: filled(r, batch, heads, queries, rope) },
      ...{ latent: filled(r, batch, keys, rank), kRope: filled(r, batch, keys, rope) },
      ...{ wUk: filled(r, heads, nope, rank), wUv: filled(r, heads, value, rank) },
    };
    const options = {
      ...{ form: r.pick(['absorbed', 'expanded'] as const), ...randomScoring(r, heads), ...randomDropout(r) },
      ...(chance(r, 0.5) && { causal: 'bottomRight' as const }),
      ...(chance(r, 0.5) && { return: ['lse', 'weights'] as const }),
    };
    await compare(
      () => mh.latentAttention(inputs, options),
      () => pool.latentAttention(inputs, options),
      described(options),
    );
  },

  async headStatistics(pool, r, compare) {
    const [heads, queries] = [r.int(1, 4), r.int(1, 12)];
    const keys = queries + r.int(0, 3);
    const q = [filled(r, 1, heads, queries, 8), filled(r, 1, heads, keys, 8)] as const;
    const { weights } = mh.attention(q[0], q[1], q[1], { return: ['weights'] });
    const options = chance(r, 0.5) ? { tokens: tokensOf(r, keys, 4) } : {};
    await compare(
      () => headStatistics(mh, weights, options),
      () => pool.headStatistics(weights, options),
      'headStatistics',
    );
  },

  async scores(pool, r, compare) {
    const [numKvHeads, queries, keys] = [r.int(1, 2), r.int(1, 90), r.int(1, 50)];
    const heads = numKvHeads * r.int(1, 2);
    const [q, k] = [filled(r, 1, heads, queries, 16), filled(r, 1, numKvHeads, keys, 16)];
    const first = r.int(0, queries - 1);
    const options: ScoresOptions = {
      ...{ stage: r.pick(['raw', 'capped', 'masked', 'weights'] as const), chunk: r.int(1, 40), ...randomScoring(r, heads) },
      causal: r.pick([false, 'topLeft', 'bottomRight'] as const),
      ...(chance(r, 0.4) && { rows: [first, r.int(0, queries - first)] }),
      ...(chance(r, 0.4) && { heads: [heads - 1, 0].slice(0, heads) }),
      ...(chance(r, 0.3) && { mask: randomMask(r, [queries, keys]) }),
      ...(chance(r, 0.3) && { bias: randomBias(r, [1, heads, 1, keys]) }),
    };
    const remote = async (): Promise<unknown[]> => {
      const chunks = [];
      for await (const chunk of pool.scores(q, k, options)) chunks.push(chunk);
      return chunks;
    };
    await compare(() => [...mh.scores(q, k, options)], remote, described(options));
  },

  async transformerBlock(pool, r, compare) {
    const config = blockConfig(r);
    const what = described(config);
    // Takes the parameters of a one-layer model, because a block has no initialize().
    const model = mh.transformer({ ...config, numLayers: 1, vocabSize: 4 });
    model.initialize({ seed: 3 });
    const ofLayer = Object.entries(model.stateDict()).filter(([name]) => name.startsWith('layers.0.'));
    const dict: StateDict = Object.fromEntries(ofLayer.map(([name, tensor]) => [name.slice('layers.0.'.length), tensor]));
    const [local, remote] = [mh.transformerBlock(config), await pool.transformerBlock(config, all)];
    local.loadStateDict(dict);
    await remote.loadStateDict(dict);
    const batch = r.int(1, 2);
    const input = (tokens: number) => filled(r, batch, tokens, config.embedDim);
    const x = input(r.pick([1, 5, 40]));
    const options = {
      ...forwardOptions(r, config.numHeads, 1),
      ...(chance(r, 0.5) && { return: ['attentionOut'] as const }),
      causal: 'topLeft' as const,
    };
    await compare(
      () => local.forward(x, options),
      () => remote.forward(x, options),
      `forward, ${what}`,
    );

    const caches = [local.createCache(kept(random(1), batch)), await remote.createCache(kept(random(1), batch))] as const;
    for (const tokens of [r.int(1, 20), 1, 3]) {
      const next = input(tokens);
      await compare(
        () => local.step(next, caches[0]),
        () => remote.step(next, caches[1]),
        `step, ${what}`,
      );
    }
    const dOut = filled(r, ...x.shape);
    await compare(
      () => local.backward(x, dOut),
      () => remote.backward(x, dOut),
      `backward, ${what}`,
    );
    await compare(
      () => local.stateDict(),
      () => remote.stateDict(),
      `stateDict, ${what}`,
    );
    for (const each of [caches[1], remote]) each.dispose();
  },

  async transformer(pool, r, compare) {
    const config = modelConfig(r);
    const what = described(config);
    const [local, remote] = [mh.transformer(config), await pool.transformer(config, all)];
    local.initialize({ seed: 5 });
    await remote.initialize({ seed: 5 });
    for (const tokens of [r.int(1, 12), 45]) {
      const batch = r.int(1, 2);
      const ids = tokensOf(r, batch * tokens, config.vocabSize);
      const options = {
        ...{ batch, ...forwardOptions(r, config.numHeads, config.numLayers) },
        ...(chance(r, 0.4) && { return: ['logits', 'hidden'] as const }),
      };
      await compare(
        () => local.forward(ids, options as object),
        () => remote.forward(ids, options as object),
        `forward, ${what}`,
      );
    }
    if (config.causal !== false) {
      const batch = r.int(1, 2);
      const storage = kept(r, batch);
      const caches = [local.createCache(storage), await remote.createCache(storage)] as const;
      for (const tokens of [r.int(1, 20), 1, 1, 4]) {
        const ids = tokensOf(r, batch * tokens, config.vocabSize);
        const options = chance(r, 0.3) ? ({ return: ['logits', 'hidden'] } as const) : {};
        await compare(
          () => local.step(ids, caches[0], options as object),
          () => remote.step(ids, caches[1], options as object),
          `step, ${what}`,
        );
      }
      const length = r.int(0, caches[0].length());
      caches[0].truncate(length);
      await caches[1].truncate(length);
      const [id] = [tokensOf(r, batch, config.vocabSize)];
      await compare(
        () => local.step(id, caches[0]),
        () => remote.step(id, caches[1]),
        `step after truncate, ${what}`,
      );
      await compare(
        () => caches[0].length(),
        () => caches[1].length(),
        `length, ${what}`,
      );
      caches[1].dispose();
    }
    await compare(
      () => local.stateDict(),
      () => remote.stateDict(),
      `stateDict, ${what}`,
    );
    remote.dispose();
  },

  async trainer(pool, r, compare) {
    const config = modelConfig(r);
    const [local, remote] = [mh.transformer(config), await pool.transformer(config, all)];
    local.initialize({ seed: 5 });
    await remote.initialize({ seed: 5 });
    const options = {
      ...(chance(r, 0.5) ? { optimizer: 'sgd' as const, momentum: 0.9, nesterov: chance(r, 0.5) } : { weightDecay: 0.1 }),
      ...{ learningRate: 0.01, warmupSteps: r.int(0, 3), clipNorm: r.pick([0, 1]), recompute: chance(r, 0.3), seed: r.int(0, 9) },
    };
    const what = `${described(options)}, ${described(config)}`;
    const [mine, theirs] = [mh.trainer(local, options), await pool.trainer(remote, options)];
    const batchOf = () => {
      const batch = r.int(1, 3);
      const tokens = tokensOf(r, batch * 10, config.vocabSize);
      const targets = Int32Array.from({ length: tokens.length * (config.numReadouts ?? 1) }, () => r.int(-1, config.vocabSize - 1));
      return [tokens, targets, { batch }] as const;
    };
    for (let step = 0; step < 2; step += 1) {
      const given = batchOf();
      await compare(
        () => mine.step(...given),
        () => theirs.step(...given),
        `trainer.step, ${what}`,
      );
    }
    const checkpoint = mine.checkpoint();
    await compare(
      () => checkpoint,
      () => theirs.checkpoint(),
      `checkpoint, ${what}`,
    );
    for (const given of [batchOf(), batchOf()]) {
      await compare(
        () => mine.accumulate(...given),
        () => theirs.accumulate(...given),
        `accumulate, ${what}`,
      );
    }
    await compare(
      () => mine.gradients(),
      () => theirs.gradients(),
      `gradients, ${what}`,
    );
    await compare(
      () => mine.update(),
      () => theirs.update(),
      `update, ${what}`,
    );
    mine.setLearningRate(0.5);
    await theirs.setLearningRate(0.5);
    const given = batchOf();
    await compare(
      () => mine.step(...given),
      () => theirs.step(...given),
      `step at another rate, ${what}`,
    );
    const ids = tokensOf(r, 9, config.vocabSize);
    await compare(
      () => local.forward(ids),
      () => remote.forward(ids),
      `forward after training, ${what}`,
    );
    mine.restore(checkpoint);
    await theirs.restore(checkpoint);
    await compare(
      () => [mine.steps(), mine.stateDict()],
      async () => [await theirs.steps(), await theirs.stateDict()],
      `restored, ${what}`,
    );
    for (const each of [theirs, remote]) each.dispose();
  },

  async experiment(pool, r, compare) {
    const options = {
      kind: r.pick(['fourJobs', 'induction'] as const),
      positions: r.pick(['rope', 'learned', 'alibi'] as const),
      batch: 4,
      seed: r.int(0, 99),
    };
    const [local, remote] = [createExperiment(mh, options), await pool.experiment(options)];
    const what = described(options);
    for (let step = 0; step < 2; step += 1)
      await compare(
        () => local.step(),
        () => remote.step(),
        `step, ${what}`,
      );
    const evaluation = { sequences: 8, ablation: chance(r, 0.5) };
    await compare(
      () => local.evaluate(evaluation),
      () => remote.evaluate(evaluation),
      `evaluate, ${what}`,
    );
    await compare(
      () => local.checkpoint(),
      () => remote.checkpoint(),
      `checkpoint, ${what}`,
    );
    remote.dispose();
  },
};

/** Expected calls of each operation in each pool. */
const usual: Record<string, number> = { transformer: 6, transformerBlock: 6, trainer: 4, experiment: 2 };

describe.each(Object.entries(verbs))('%s', (name, verb) => {
  test(`random calls (MULTIHEAD_SEED=${runSeed})`, { timeout: 0 }, async () => {
    let results = 0;
    const cases = caseCount(usual[name] ?? 12);
    for (const pool of pools) {
      for (let round = 0; round < cases; round += 1) {
        const seed = runSeed + round;
        const compare: Compare = async (local, remote, what) => {
          const worked = await sameOfBoth(local, remote, `seed ${seed}, ${pool.backend.why}: ${what}`);
          results += worked ? 1 : 0;
          return worked;
        };
        await mh.scope(() => verb(pool, random(seed), compare));
      }
    }
    expect(results).toBeGreaterThanOrEqual(pools.length * cases);
  });
});
