// Random sequences of operations on all objects of an instance: tensors and their reshape()s, caches, modules,
// transformers, prepared operations, nested scopes. After each step, memory() must equal the objects that were made and
// not disposed, and each result must agree with the float64 reference. MULTIHEAD_RANDOM_CASES sets the number of cases.

import type { KVCache, Multihead, MultiHeadAttention, PreparedAttention, Tensor, Transformer } from 'multihead';
import { describe, expect, it, vi } from 'vitest';
import { builds, loadBuild } from './builds.ts';
import { CacheModel, layouts } from './cache_model.ts';
import { module as moduleReference } from './module_reference.ts';
import { random, runSeed, type Random } from './random.ts';
import { caseCount, filled, product } from './random_case.ts';
import { parameters } from './random_module.ts';
import * as reference from './reference.ts';
import { model as modelReference } from './transformer_reference.ts';

vi.spyOn(console, 'warn').mockImplementation(() => {});

const stepsOfASession = 60;
const sessions = caseCount(12);
const allowed = 1e-5;

interface Entry {
  readonly what: string;
  /** Size of the object's memory; entries with the same `shares` share it. */
  bytes: number;
  readonly shares?: object;
  readonly made: { dispose(): void; readonly disposed: boolean };
  /** Uses the object, and compares the result with the reference. */
  use(r: Random): void;
}

class World {
  readonly #mh: Multihead;
  entries: Entry[] = [];

  constructor(mh: Multihead) {
    this.#mh = mh;
  }

  /** The expected result of memory(). */
  expected(): { live: number; bytes: number } {
    const live = this.entries.filter(({ made }) => !made.disposed);
    const storages = new Map<object, number>();
    for (const entry of live) storages.set(entry.shares ?? entry, entry.bytes);
    const bytes = [...storages.values()].reduce((sum, each) => sum + each, 0);
    return { live: live.length, bytes };
  }

  step(r: Random, depth: number): string {
    this.entries = this.entries.filter(({ made }) => !made.disposed);
    if (depth < 2 && r.int(0, 9) === 0) return this.#scope(r, depth);
    const entry = this.entries.length > 0 ? r.pick(this.entries) : undefined;
    if (entry === undefined || r.int(0, 4) === 0) {
      const made = r.pick(this.#makers)(r);
      this.entries.push(made);
      return `makes ${made.what}`;
    }
    if (r.int(0, 9) === 0 || this.entries.length > 25) {
      entry.made.dispose();
      if (r.int(0, 3) === 0) entry.made.dispose();
      return `disposes ${entry.what}`;
    }
    entry.use(r);
    return `uses ${entry.what}`;
  }

  #scope(r: Random, depth: number): string {
    const outside = new Set(this.entries);
    const steps = r.int(1, 6);
    const kept = this.#mh.scope(() => {
      for (let step = 0; step < steps; step += 1) this.step(r, depth + 1);
      const inside = this.entries.filter((each) => !outside.has(each) && !each.made.disposed);
      return inside.filter(() => r.int(0, 1) === 0).map(({ made }) => made);
    });
    for (const { made, what } of this.entries) {
      const inside = ![...outside].some((each) => each.made === made);
      if (inside && !kept.includes(made)) expect(made.disposed, what).toBe(true);
    }
    expect(kept.every(({ disposed }) => !disposed)).toBe(true);
    return `a scope of ${steps} steps, which keeps ${kept.length}`;
  }

  readonly #makers: readonly ((r: Random) => Entry)[] = [
    (r) => {
      const shape = Array.from({ length: r.int(1, 4) }, () => r.int(r.int(0, 1), 6));
      const numbers = r.floats(product(shape));
      return this.#tensorEntry(this.#mh.tensor(numbers, shape), numbers, {});
    },
    (r) => this.#cacheEntry(r),
    (r) => this.#moduleEntry(r),
    (r) => this.#modelEntry(r),
    (r) => this.#preparedEntry(r),
  ];

  #tensorEntry(tensor: Tensor, numbers: Float32Array, shares: object): Entry {
    const use = (r: Random): void => {
      expect(tensor.toFloat32()).toEqual(numbers);
      if (r.int(0, 1) === 0 && numbers.length > 0) {
        const index = r.int(0, numbers.length - 1);
        tensor.data[index] = numbers[index] = Math.fround(r.next());
      }
      if (r.int(0, 1) === 0) return;
      const shape = r.pick([[numbers.length], [1, numbers.length], [...tensor.shape].reverse()]);
      this.entries.push(this.#tensorEntry(tensor.reshape(shape), numbers, shares));
    };
    const what = `a tensor (${tensor.shape.join(', ')})`;
    return { what, bytes: 4 * numbers.length, shares, made: tensor, use };
  }

  #cacheEntry(r: Random): Entry {
    const config = {
      ...{ batch: r.int(1, 2), numKvHeads: r.int(1, 2), headDim: r.int(1, 9), valueDim: r.int(1, 5) },
      capacity: 24,
    };
    const layout = r.pick(layouts);
    const cache: KVCache = this.#mh.createCache({ ...config, layout });
    let model = new CacheModel(config, layout, 'f32');
    const use = (r_: Random): void => {
      const way = r_.int(0, 9);
      if (way === 0) {
        cache.clear();
        model = new CacheModel(config, layout, 'f32');
      } else if (way < 5 && (layout === 'ring' || model.longest <= 20)) {
        const rows = r_.int(1, 4);
        const k = filled(r_, config.batch, config.numKvHeads, rows, config.headDim);
        const v = filled(r_, config.batch, config.numKvHeads, rows, config.valueDim);
        cache.append(k, v);
        model.append(k, v, new Array<number>(config.batch).fill(rows));
      } else if (model.longest > 0) {
        const heads = config.numKvHeads * r_.int(1, 2);
        const q = filled(r_, config.batch, heads, r_.int(1, 3), config.headDim);
        const lengths = Int32Array.from({ length: config.batch }, (_, b) => model.length(b));
        const wanted = reference.attention(q, model.tensor(model.keys, config.headDim), model.tensor(model.values, config.valueDim), {
          causal: 'bottomRightOfLength',
          kvLengths: lengths,
          firstKept: model.firsts,
        });
        const { out } = cache.attend(q, { causal: 'bottomRight' });
        expect(reference.maxDifference(out.data, wanted.out)).toBeLessThan(allowed);
        out.dispose();
      }
      expect(cache.length()).toBe(model.length(0));
    };
    return { what: `a ${layout} cache`, bytes: cache.bytes, made: cache, use };
  }

  #moduleEntry(r: Random): Entry {
    const numHeads = r.int(1, 3);
    const layer: MultiHeadAttention = this.#mh.multiHeadAttention({
      ...{ embedDim: 6, numHeads, headDim: r.int(1, 4), sinks: r.int(0, 1) === 0 },
    });
    const { config } = layer;
    const dict = parameters(r, config);
    const entry = { what: 'a module', bytes: 0, made: layer };
    let loaded = false;
    const use = (r_: Random): void => {
      if (!loaded) {
        layer.loadStateDict(dict);
        loaded = true;
        entry.bytes = 4 * Object.values(dict).reduce((sum, { data }) => sum + data.length, 0);
        return;
      }
      const x = filled(r_, r_.int(1, 2), r_.int(1, 5), 6);
      const wanted = moduleReference({ config, dict, query: x, options: { causal: 'topLeft' } });
      const { output } = layer.forward(x, { causal: 'topLeft', trace: r_.int(0, 1) === 0 });
      expect(reference.maxDifference(output.data, wanted.output)).toBeLessThan(allowed);
      // Repeats the pass with step() and a new cache.
      const cache = layer.createCache({ batch: x.shape[0] as number, capacity: 8 });
      const stepped = layer.step(x, cache).output;
      expect(reference.maxDifference(stepped.data, wanted.output)).toBeLessThan(allowed);
      for (const each of [output, stepped, cache]) each.dispose();
    };
    return Object.assign(entry, { use });
  }

  #modelEntry(r: Random): Entry {
    const model: Transformer = this.#mh.transformer({
      ...{ numLayers: r.int(1, 2), vocabSize: 5, embedDim: 4, numHeads: 2, maxPositions: 8 },
      ...{ norm: 'none', finalNorm: false, tiedOutput: true, bias: false },
    });
    const { config } = model;
    const dict = Object.fromEntries([
      ['embedding.weight', filled(r, 5, 4)],
      ['position.weight', filled(r, 8, 4)],
      ...Array.from({ length: config.numLayers }, (_, index) => [
        [`layers.${index}.self_attn.in_proj_weight`, filled(r, 24 / 2, 4)],
        [`layers.${index}.self_attn.out_proj.weight`, filled(r, 4, 4)],
      ]).flat(),
    ]) as Parameters<Transformer['loadStateDict']>[0];
    model.loadStateDict(dict);
    const use = (r_: Random): void => {
      const tokens = Int32Array.from({ length: r_.int(1, 8) }, () => r_.int(0, 4));
      const wanted = modelReference(config, dict as never, tokens, 1).logits;
      const { logits } = model.forward(tokens);
      expect(reference.maxDifference(logits.data, wanted.data)).toBeLessThan(allowed);
      const cache = model.createCache({ capacity: 8 });
      const split = r_.int(0, tokens.length - 1);
      if (split > 0) model.step(tokens.subarray(0, split), cache, { return: [] });
      const rest = model.step(tokens.subarray(split), cache).logits;
      const last = (wanted.data as Float64Array).subarray(split * 5);
      expect(reference.maxDifference(rest.data, last)).toBeLessThan(allowed);
      for (const each of [logits, rest, cache]) each.dispose();
    };
    const bytes = 4 * Object.values(dict).reduce((sum, { shape }) => sum + product(shape), 0);
    return { what: 'a model', bytes, made: model, use };
  }

  #preparedEntry(r: Random): Entry {
    const [batch, heads, queries, keys] = [r.int(1, 2), r.int(1, 2), r.int(1, 9), r.int(1, 40)];
    const shape = [batch, heads, queries, 4];
    const kvLengths = new Int32Array(batch).fill(keys);
    const causal = r.pick([false, 'bottomRightOfLength'] as const);
    const op: PreparedAttention = this.#mh.prepare({ q: shape, keys, causal, kvLengths });
    const use = (r_: Random): void => {
      if (r_.int(0, 1) === 0) {
        for (let b = 0; b < batch; b += 1) kvLengths[b] = r_.int(0, keys);
        op.setKvLengths(kvLengths);
      }
      const [q, k, v] = [op.shapes.q, op.shapes.k, op.shapes.v].map((each) => filled(r_, ...each));
      const wanted = reference.attention(q!, k!, v!, { causal, kvLengths });
      const tensors = [q!, k!, v!].map((each) => this.#mh.tensor(each.data, each.shape));
      const out = this.#mh.zeros(op.shapes.out);
      op.run(tensors[0]!, tensors[1]!, tensors[2]!, out);
      expect(reference.maxDifference(out.data, wanted.out)).toBeLessThan(allowed);
      for (const each of [...tensors, out]) each.dispose();
    };
    return { what: 'an operation', bytes: kvLengths.byteLength, made: op, use };
  }
}

describe.each(builds)('random sequences, %s', (simd) => {
  it(`of ${sessions} sessions, seed ${runSeed}`, { timeout: 3_600_000 }, async () => {
    const mh = await loadBuild(simd);
    for (let session = 0; session < sessions; session += 1) {
      const seed = runSeed + session;
      const r = random(seed);
      const world = new World(mh);
      for (let step = 0; step < stepsOfASession; step += 1) {
        const label = `MULTIHEAD_SEED=${seed}, step ${step}`;
        let what: string;
        try {
          what = world.step(r, 0);
        } catch (error) {
          throw new Error(`${label}: ${String(error)}`, { cause: error });
        }
        const { live, bytes } = mh.memory();
        expect({ live, bytes }, `${label} ${what}`).toEqual(world.expected());
      }
      for (const { made } of world.entries) made.dispose();
      expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
    }
  });
});
