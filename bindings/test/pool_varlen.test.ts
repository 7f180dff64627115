// Packed sequences in a pool, forward and backward: bit-identical to one thread for sequences of all lengths, including
// long ones that are divided.

import type { Multihead, VarlenGradientName, VarlenOptions } from 'multihead';
import type { Pool } from 'multihead/pool';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { builds, loadBuild, rejectionOf } from './builds.ts';
import { inEach, openPools, sameResults } from './pool_results.ts';
import { random, runSeed } from './random.ts';
import { caseCount, chance, filled, product, randomScoring, stored } from './random_case.ts';

const lengthsUpTo = { few: [0, 1, 5, 17, 60], long: [3, 200, 1100], one: [700] } as const;

/** A random call of some sequences. */
function packedCall(seed: number) {
  const r = random(seed);
  const numKvHeads = r.int(1, 3);
  const heads = numKvHeads * r.pick([1, 2]);
  const choice = r.pick(['few', 'long', 'one'] as const);
  const sequences = choice === 'one' ? 1 : r.int(1, choice === 'few' ? 9 : 4);
  const cumulative = (): Int32Array => {
    let sum = 0;
    return Int32Array.from([0, ...Array.from({ length: sequences }, () => (sum += r.pick(lengthsUpTo[choice])))]);
  };
  const [cuQ, cuK] = [cumulative(), cumulative()];
  const dtype = r.pick(['f32', 'f32', 'bf16'] as const);
  const tensor = (...shape: number[]) => stored(dtype, shape, r.floats(product(shape))).given;
  const width = r.pick([16, 24]);
  const valueDim = r.pick([8, 24]);
  const [queries, keys] = [cuQ.at(-1) as number, cuK.at(-1) as number];
  const options = {
    ...{ cuQ, cuK, ...randomScoring(r, heads) },
    causal: r.pick([false, 'topLeft', 'bottomRight', { offset: r.int(-5, 5) }] as const),
    ...(chance(r, 0.3) ? { window: { left: r.int(0, 60) } } : {}),
    ...(chance(r, 0.4) ? { dropout: { probability: 0.4, seed: r.pick([3, 2n ** 64n - 5n]) } } : {}),
    ...(chance(r, 0.4) ? { rope: { style: r.pick(['interleaved', 'half'] as const), rotaryDim: 8 } } : {}),
    ...(chance(r, 0.2) ? { qkNorm: { qGain: r.floats(width) } } : {}),
  } satisfies VarlenOptions;
  return {
    ...{ q: tensor(queries, heads, width), k: tensor(keys, numKvHeads, width), v: tensor(keys, numKvHeads, valueDim) },
    dOut: filled(r, queries, heads, valueDim),
    options,
    label: `seed ${seed}: ${choice}, ${JSON.stringify({ ...options, dropout: !!options.dropout })}`,
  };
}

describe.each(builds)('%s', (simd) => {
  let mh: Multihead;
  let pools: Pool[];
  beforeAll(async () => {
    mh = await loadBuild(simd);
    pools = await openPools(simd);
  });
  afterAll(() => pools.forEach((pool) => pool.dispose()));

  test(`random sequences and their gradients (MULTIHEAD_SEED=${runSeed})`, { timeout: 0 }, async () => {
    for (let round = 0; round < caseCount(24); round += 1) {
      const { q, k, v, dOut, options, label } = packedCall(runSeed + round);
      const call = { ...options, return: ['lse'] as const };
      const result = mh.attentionVarlen(q, k, v, call);
      const inputs = { q, k, v, dOut, out: plain(result.out), lse: plain(result.lse) };
      const names: VarlenGradientName[] = ['dQ', 'dK', 'dV'];
      if (options.sinks && round % 2 === 0) names.push('dSinks');
      if (options.qkNorm && round % 2 === 0) names.push('dQGain');
      const gradients = mh.attentionVarlenBackward(inputs, { ...options, return: names });
      await inEach(pools, async (pool, workers) => {
        sameResults(await pool.attentionVarlen(q, k, v, call), result, `${workers}, ${label}`);
        const actual = await pool.attentionVarlenBackward(inputs, { ...options, return: names });
        sameResults(actual, gradients, `${workers}, ${label}`);
      });
      for (const each of [...Object.values(result), ...Object.values(gradients)]) {
        if ('dispose' in each) each.dispose();
      }
    }
  });

  test('one long sequence goes to all workers, and errors are those of one thread', async () => {
    const r = random(1);
    const [q, k, v] = [filled(r, 1000, 1, 16), filled(r, 1000, 1, 16), filled(r, 1000, 1, 16)];
    const [cuQ, cuK] = [Int32Array.of(0, 1000), Int32Array.of(0, 1000)];
    await inEach(pools.slice(1), async (pool, workers) => {
      const seen: number[] = [];
      await pool.attentionVarlen(q, k, v, { cuQ, cuK, progress: (_, total) => seen.push(total) });
      expect(seen[0], workers).toBeGreaterThanOrEqual(2);
      for (const wrong of [{ sinks: new Float32Array(2) }, { causal: 'left' }, { dropout: { probability: 1 } }, { cuQ: [0] }]) {
        const call = { cuQ, cuK, ...wrong } as never;
        const error = await rejectionOf(pool.attentionVarlen(q, k, v, call));
        expect(() => mh.attentionVarlen(q, k, v, call)).toThrow(error.message);
      }
    });
  });

  test('a wrong seed is the error of one thread, with several sequences and in the gradients too', async () => {
    const r = random(2);
    const rows = () => filled(r, 1000, 2, 16);
    const [q, k, v, dOut, out] = [rows(), rows(), rows(), rows(), rows()];
    const cu = Int32Array.of(0, 400, 800, 1000);
    const inputs = { q, k, v, dOut, out, lse: filled(r, 2, 1000) };
    for (const seed of [1.5, -1, 2n ** 64n, 'abc', {}]) {
      const call = { cuQ: cu, cuK: cu, dropout: { probability: 0.5, seed } } as never;
      await inEach(pools, async (pool, workers) => {
        for (const run of [() => pool.attentionVarlen(q, k, v, call), () => pool.attentionVarlenBackward(inputs, call)]) {
          const error = await rejectionOf(run());
          expect(error, workers).toMatchObject({ code: 'E_OPTION', argument: 'dropout.seed' });
        }
      });
    }
  });
});

const plain = ({ data, shape }: { data: Float32Array; shape: readonly number[] }) => ({ data: data.slice(), shape });
