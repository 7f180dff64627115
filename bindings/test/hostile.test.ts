// Calls with randomly altered arguments: each gives a MultiheadError or the right result, leaves nothing allocated, and
// does not change the bits of later calls. MULTIHEAD_RANDOM_CASES sets the number of cases.

import {
  gpt2Config,
  readSafetensors,
  writeSafetensors,
  type Experiment,
  type Multihead,
  type MultiheadError,
  type Simd,
  type Tensor,
  type Trainer,
} from 'multihead';
import { createExperiment, headStatistics } from 'multihead/lab';
import { train } from 'multihead/training';
import { describe, expect, it, vi } from 'vitest';
import { builds, loadBuild } from './builds.ts';
import { copied, disguise, hostileValue, placesIn } from './hostile_values.ts';
import { random, runSeed, type Random } from './random.ts';
import { caseCount, filled } from './random_case.ts';

vi.spyOn(console, 'warn').mockImplementation(() => {});

const calls = caseCount(3000);

/** A call with its arguments as a tree of plain objects, any part of which may be replaced. */
interface Verb {
  arguments(): unknown[];
  call(...args: never[]): unknown;
}

interface Resource {
  readonly disposed: boolean;
  dispose(): void;
}

function isResource(value: unknown): value is Resource {
  try {
    return typeof value === 'object' && value !== null && 'dispose' in value && 'disposed' in value;
  } catch {
    return false; // a proxy
  }
}

/** Formats all numbers of a result as text. */
function digest(result: unknown, depth = 0): string {
  if (typeof result !== 'object' || result === null || depth > 4) return String(result);
  if (ArrayBuffer.isView(result)) {
    const { buffer, byteOffset, byteLength } = result;
    return Buffer.from(buffer as ArrayBuffer, byteOffset, byteLength).toString('base64');
  }
  if (isResource(result)) {
    const { shape, data, config } = result as { shape?: unknown; data?: unknown; config?: unknown };
    return `<${digest(shape, depth + 1)} ${digest(data ?? config, depth + 1)}>`;
  }
  const entries = Object.entries(result).map(([name, each]) => `${name}: ${digest(each, depth + 1)}`);
  return `{${entries.join(', ')}}`;
}

function disposeAll(result: unknown, depth = 0): void {
  if (typeof result !== 'object' || result === null || depth > 3) return;
  if (isResource(result)) result.dispose();
  else if (!ArrayBuffer.isView(result)) for (const each of Object.values(result)) disposeAll(each, depth + 1);
}

/** Makes the calls of one instance. Remakes objects that a case has disposed. */
function verbsOf(mh: Multihead): { verbs: Record<string, Verb>; canary: () => string; keep: () => void } {
  const r = random(5);
  const plain = (...shape: number[]) => filled(r, ...shape);
  const made = new Map<string, Resource>();
  const kept = <T extends Resource>(name: string, make: () => T): T => {
    const present = made.get(name);
    if (present !== undefined && !present.disposed) return present as T;
    const fresh = make();
    made.set(name, fresh);
    return fresh;
  };

  const [q, k, v] = [plain(1, 2, 3, 4), plain(1, 2, 5, 4), plain(1, 2, 5, 4)];
  const tensor = (name: string, { shape, data }: typeof q) => kept(name, () => mh.tensor(data, shape));
  const tensors = () => [tensor('q', q), tensor('k', k), tensor('v', v)];
  const out = () => {
    const given = kept('out', () => mh.zeros([1, 2, 3, 4]));
    given.data.fill(0);
    return given;
  };
  const masking = () => ({
    ...{ scale: 0.5, softcap: 3, window: { left: 3, right: 1, align: { offset: 1 } } },
    ...{ bias: plainBias, alibi: new Float32Array([0.5, 0.25]), sinks: new Float32Array(2) },
    ...{ kvLengths: new Int32Array([4]), dropout: { probability: 0.25, seed: 7 } },
    ...{ qkNorm: { qGain: new Float32Array(4).fill(1), eps: 1e-3 } },
    ...{ rope: { style: 'half', base: 100, kPositions: new Int32Array([0, 1, 2, 3, 4]) } },
    mask: { shape: [3, 5], data: new Uint8Array(15).fill(1) },
  });
  const plainBias = plain(3, 5);
  const parameters = {
    in_proj_weight: plain(12, 4),
    in_proj_bias: plain(12),
    'out_proj.weight': plain(4, 4),
    'out_proj.bias': plain(4),
  };
  const layer = () =>
    kept('layer', () => {
      const fresh = mh.multiHeadAttention({ embedDim: 4, numHeads: 2 });
      fresh.loadStateDict(parameters);
      return fresh;
    });
  const gpt2 = {
    ...{ 'wte.weight': plain(6, 4), 'wpe.weight': plain(8, 4), 'ln_f.weight': plain(4), 'ln_f.bias': plain(4) },
    ...{ 'h.0.ln_1.weight': plain(4), 'h.0.ln_1.bias': plain(4), 'h.0.ln_2.weight': plain(4), 'h.0.ln_2.bias': plain(4) },
    ...{ 'h.0.attn.c_attn.weight': plain(4, 12), 'h.0.attn.c_attn.bias': plain(12) },
    ...{ 'h.0.attn.c_proj.weight': plain(4, 4), 'h.0.attn.c_proj.bias': plain(4) },
    ...{ 'h.0.mlp.c_fc.weight': plain(4, 8), 'h.0.mlp.c_fc.bias': plain(8) },
    ...{ 'h.0.mlp.c_proj.weight': plain(8, 4), 'h.0.mlp.c_proj.bias': plain(4) },
  };
  const model = () =>
    kept('model', () => {
      const fresh = mh.transformer(gpt2Config(gpt2, 2));
      fresh.loadStateDict(gpt2, { names: 'gpt2' });
      return fresh;
    });
  const block = () =>
    kept('block', () => {
      const fresh = mh.transformerBlock({ embedDim: 4, numHeads: 2, norm: 'none' });
      fresh.loadStateDict(Object.fromEntries(Object.entries(parameters).map(([name, each]) => [`self_attn.${name}`, each])));
      return fresh;
    });
  const cache = () => {
    const given = kept('cache', () => mh.createCache({ numKvHeads: 2, headDim: 4, capacity: 16 }));
    given.clear();
    return given;
  };
  const filledCache = () => {
    const given = cache();
    given.append(k, v);
    return given;
  };
  const past = (name: string, of: { createCache: (config: { capacity: number }) => Resource & { truncate(n: number): void } }) => {
    const given = kept(name, () => of.createCache({ capacity: 8 }));
    given.truncate(0);
    return given;
  };
  const op = () => kept('op', () => mh.prepare({ q: q.shape, keys: 5, causal: 'topLeft' }));
  const x = plain(1, 3, 4);
  const file = writeSafetensors({ a: plain(2, 3) }, { metadata: { b: 'c' } });
  const packed = [plain(4, 2, 4), plain(5, 2, 4), plain(5, 2, 4)];
  const latent = {
    ...{ qNope: plain(1, 2, 3, 4), qRope: plain(1, 2, 3, 2), latent: plain(1, 5, 3) },
    ...{ kRope: plain(1, 5, 2), wUk: plain(2, 4, 3), wUv: plain(2, 4, 3) },
  };
  const part = (name: string) => ({
    out: kept(`${name} out`, () => mh.zeros([1, 1, 2, 2])),
    lse: kept(`${name} lse`, () => mh.zeros([1, 1, 2])),
  });
  const newModel = () => {
    const fresh = mh.transformer({ numLayers: 1, vocabSize: 6, embedDim: 4, numHeads: 2, maxPositions: 8 });
    fresh.initialize({ seed: 1 });
    return fresh;
  };
  const newTrainer = () => {
    using own = newModel();
    return mh.trainer(own, { learningRate: 0.01 });
  };
  const trainer = () => kept('trainer', newTrainer);
  /** Makes a new trainer for each call, because a trainer's memory grows with its largest call. */
  const training = <R>(use: (trainer: Trainer) => R): R => {
    using fresh = newTrainer();
    return use(fresh);
  };
  const checkpoint = training((trainer) => trainer.checkpoint());
  const newExperiment = () => createExperiment(mh, { kind: 'induction', numLayers: 1, batch: 1 });
  const experimenting = <R>(use: (experiment: Experiment) => R): R => {
    using fresh = newExperiment();
    return use(fresh);
  };
  const experimentFile = experimenting((experiment) => experiment.checkpoint());

  const verbs: Record<string, Verb> = {
    tensor: {
      arguments: () => [[2, 3], new Float32Array(6).fill(2), { dtype: 'bf16' }],
      call: (shape, data, options) => mh.tensor(data, shape, options),
    },
    reshape: {
      arguments: () => [tensor('q', q), [4, 6]],
      call: (given: { reshape(shape: unknown): unknown }, shape) => (given === tensor('q', q) ? given.reshape(shape) : tensor('q', q).reshape(shape)),
    },
    attention: {
      arguments: () => [
        q,
        ...tensors().slice(1),
        {
          ...masking(),
          out: out(),
          return: ['lse', 'weights', 'dropoutMask'],
          capture: [{ stage: 'masked', heads: [1], rows: [1, 2] }],
        },
      ],
      call: (a, b, c, options) => mh.attention(a, b, c, options),
    },
    attentionBackward: {
      arguments: () => [
        { q, k, v: tensor('v', v), out: plain7, lse: tensor('lse', lse), dOut: plain7 },
        { ...masking(), out: { dQ: out() }, return: ['dQ', 'dK', 'dBias', 'dSinks', 'dQGain'] },
      ],
      call: (inputs, options) => mh.attentionBackward(inputs, options),
    },
    plainAttention: { arguments: () => [q, k, v], call: (a, b, c) => mh.attention(a, b, c) },
    prepare: {
      arguments: () => [{ q: [1, 2, 3, 4], keys: 5, ...masking(), return: ['lse'] }],
      call: (options) => mh.prepare(options),
    },
    run: {
      arguments: () => [...tensors(), out()],
      call: (...args: [never, never, never, never]) => {
        op().run(...args);
        return [...(args[3] as { data: Float32Array }).data];
      },
    },
    scores: {
      arguments: () => {
        const { dropout: _, ...options } = masking();
        return [q, tensor('k', k), { ...options, stage: 'capped', heads: [1], chunk: 2, rows: [0, 3] }];
      },
      call: (a, b, options) => [...mh.scores(a, b, options)],
    },
    attentionVarlen: {
      arguments: () => [
        ...packed,
        {
          ...{ cuQ: new Int32Array([0, 1, 4]), cuK: new Int32Array([0, 3, 5]), return: ['lse'] },
          ...{ causal: 'bottomRight', rope: { style: 'interleaved' } },
        },
      ],
      call: (a, b, c, options) => mh.attentionVarlen(a, b, c, options),
    },
    mergeAttention: {
      arguments: () => {
        for (const each of Object.values(part('a'))) each.data.fill(1);
        return [part('a'), { out: plain2, lse: plain1 }];
      },
      call: (a, b) => void mh.mergeAttention(a, b),
    },
    alibiSlopes: { arguments: () => [6], call: (heads) => mh.alibiSlopes(heads) },
    rotate: {
      arguments: () => [q, new Int32Array([1, 2, 3]), { style: 'half', rotaryDim: 2 }],
      call: (a, positions, rope) => mh.rotate(a, positions, rope),
    },
    latentAttention: {
      arguments: () => [latent, { form: 'absorbed', causal: 'topLeft', return: ['lse', 'weights'], out: out() }],
      call: (inputs, options) => mh.latentAttention(inputs, options),
    },
    linear: {
      arguments: () => [plain3, plain4, { bias: plain5 }],
      call: (a, weight, options) => mh.linear(a, weight, options),
    },
    multiHeadAttention: {
      arguments: () => [
        {
          ...{ embedDim: 8, numHeads: 2, numKvHeads: 1, headDim: 4, bias: false, qkNorm: true, softcap: 3 },
          ...{ window: { left: 2 }, rope: { style: 'half' }, dropout: 0.1 },
        },
      ],
      call: (config) => mh.multiHeadAttention(config),
    },
    // Reload the parameters: altered ones may be valid, and other calls need the original values.
    loadStateDict: {
      arguments: () => [parameters],
      call: (dict) => {
        layer().loadStateDict(dict);
        layer().loadStateDict(parameters);
      },
    },
    forward: {
      arguments: () => [
        { query: x },
        {
          ...{ causal: 'topLeft', return: ['weights', 'meanWeights'], trace: ['qHeads', 'headShares'] },
          ...{ heads: { scales: new Float32Array([1, 0.5]), temperature: 2 }, training: true, dropoutSeed: 3 },
          keyPaddingBlocked: { shape: [1, 3], data: new Uint8Array(3) },
        },
      ],
      call: (inputs, options) => layer().forward(inputs, options),
    },
    step: {
      arguments: () => [x, past('past', layer()), { return: ['weights'], trace: true }],
      call: (tokens, given, options) => layer().step(tokens, given, options),
    },
    createModuleCache: {
      arguments: () => [{ batch: 2, capacity: 8, layout: 'paged', pageSize: 4, pages: 4, dtype: 'int8' }],
      call: (config) => layer().createCache(config),
    },
    transformerBlock: {
      arguments: () => [{ embedDim: 8, numHeads: 2, mlpDim: 4, gated: true, activation: 'silu', norm: 'rmsNorm' }],
      call: (config) => mh.transformerBlock(config),
    },
    blockForward: {
      arguments: () => [x, { causal: 'topLeft', return: ['attentionOut'], trace: ['weights'] }],
      call: (tokens, options) => block().forward(tokens, options),
    },
    transformer: {
      arguments: () => [{ numLayers: 2, vocabSize: 5, embedDim: 4, numHeads: 2, maxPositions: 8, tiedOutput: true }],
      call: (config) => mh.transformer(config),
    },
    loadModel: {
      arguments: () => [gpt2, { names: 'gpt2' }],
      call: (dict, options) => {
        model().loadStateDict(dict, options);
        model().loadStateDict(gpt2, { names: 'gpt2' });
      },
    },
    modelForward: {
      arguments: () => [new Int32Array([1, 2, 3, 4]), { batch: 2, return: ['logits', 'hidden'], trace: ['weights'] }],
      call: (tokens, options) => model().forward(tokens, options),
    },
    modelStep: {
      arguments: () => [new Int32Array([1, 2]), past('model past', model()), { return: ['logits'] }],
      call: (tokens, given, options) => model().step(tokens, given, options),
    },
    backward: {
      arguments: () => [
        { query: x },
        x,
        {
          ...{ causal: 'topLeft', softcap: 2, heads: { scales: new Float32Array([1, 0.5]) } },
          keyPaddingBlocked: { shape: [1, 3], data: new Uint8Array(3) },
        },
      ],
      call: (inputs, dOut, options) => layer().backward(inputs, dOut, options),
    },
    blockBackward: {
      arguments: () => [x, x, { causal: 'topLeft', softcap: 2 }],
      call: (tokens, dOut, options) => block().backward(tokens, dOut, options),
    },
    initialize: {
      arguments: () => [{ seed: 3, embedding: 0.5, weight: 1, residual: 0.7, output: 0.5, names: 'torch' }],
      call: (options) => {
        const fresh = mh.transformer({ numLayers: 1, vocabSize: 5, embedDim: 4, numHeads: 2 });
        try {
          fresh.initialize(options);
          return fresh.stateDict();
        } finally {
          fresh.dispose();
        }
      },
    },
    trainer: {
      arguments: () => [kept('trained', newModel), { learningRate: 1e-3, optimizer: 'sgd', momentum: 0.5, decay: 'cosine', decaySteps: 3, seed: 2 }],
      call: (given, options) => {
        using made = mh.trainer(given, options);
        made.accumulate(Int32Array.of(1, 2), Int32Array.of(2, 3));
        return made.gradients();
      },
    },
    trainerStep: {
      arguments: () => [new Int32Array([1, 2, 3, 4]), new Int32Array([2, -1, 4, 5]), { batch: 2, softcap: 4, heads: { temperature: 2 } }],
      call: (tokens, targets, options) => training((trainer) => trainer.step(tokens, targets, options)),
    },
    trainerRestore: {
      arguments: () => [checkpoint],
      call: (bytes) => training((trainer) => (trainer.restore(bytes), trainer.stateDict())),
    },
    trainerLoad: {
      arguments: () => [readSafetensors(checkpoint).stateDict],
      call: (dict) => training((trainer) => (trainer.loadStateDict(dict), trainer.stateDict())),
    },
    setLearningRate: {
      arguments: () => [0.01],
      call: (rate) => training((trainer) => trainer.setLearningRate(rate)),
    },
    train: {
      arguments: () => [{ trainer: trainer(), batches: [{ tokens: Int32Array.of(1), targets: Int32Array.of(2) }], steps: 3, every: 2 }],
      call: (options) => train(options).paused,
    },
    trainExperiment: {
      arguments: () => [{ experiment: kept('experiment', newExperiment), steps: 3, every: 2 }],
      call: (options) => train(options).paused,
    },
    experiment: {
      arguments: () => [
        {
          ...{ kind: 'induction', numHeads: 2, numLayers: 1, seed: 2, positions: 'alibi', steps: 3, batch: 1 },
          ...{ learningRate: 0.01, recompute: true },
        },
      ],
      call: (options) => {
        using made = createExperiment(mh, options);
        using logits = made.model.forward(Int32Array.of(1, 2)).logits;
        return digest([made.options, logits]);
      },
    },
    evaluate: {
      arguments: () => [{ sequences: 2, attention: true, ablation: true, headScales: new Float32Array([1, 0.5]) }],
      call: (options) => experimenting((experiment) => experiment.evaluate(options)),
    },
    heldOut: {
      arguments: () => [1, 2],
      call: (first, count) => experimenting((experiment) => experiment.heldOut(first, count)),
    },
    experimentRestore: {
      arguments: () => [experimentFile],
      call: (bytes) => experimenting((experiment) => (experiment.restore(bytes), experiment.step())),
    },
    headStatistics: {
      arguments: () => [plain6, { tokens: new Int32Array([1, 2, 1]) }],
      call: (weights, options) => headStatistics(mh, weights, options),
    },
    createCache: {
      arguments: () => [{ batch: 2, numKvHeads: 2, headDim: 4, valueDim: 3, capacity: 8, layout: 'ring', dtype: 'f16' }],
      call: (config) => mh.createCache(config),
    },
    append: {
      arguments: () => [k, tensor('v', v), new Int32Array([5])],
      call: (a, b, counts) => cache().append(a, b, counts),
    },
    attend: {
      arguments: () => [q, { causal: 'bottomRight', scale: 0.5, alibi: true, out: out(), return: ['lse'] }],
      call: (a, options) => filledCache().attend(a, options),
    },
    truncate: { arguments: () => [3, 0], call: (n, batch) => filledCache().truncate(n, batch) },
    length: { arguments: () => [0], call: (batch) => [filledCache().length(batch), filledCache().firstKept(batch)] },
    scope: { arguments: () => [{ a: [1], b: q }], call: (result) => mh.scope(() => (mh.zeros([3]), result)) },
    readSafetensors: { arguments: () => [file], call: (bytes) => readSafetensors(bytes) },
    writeSafetensors: {
      arguments: () => [
        { a: q, b: tensor('k', k) },
        { dtype: 'f16', metadata: { a: 'b' } },
      ],
      call: (given, options) => writeSafetensors(given, options),
    },
    gpt2Config: { arguments: () => [gpt2, 2], call: (dict, heads) => gpt2Config(dict, heads) },
  };
  const [plain1, plain2, plain3] = [plain(1, 1, 2), plain(1, 1, 2, 2), plain(2, 3)];
  const [plain4, plain5, plain6] = [plain(4, 3), plain(4), plain(1, 2, 3, 3)];
  const plain7 = plain(1, 2, 3, 4);
  const lse = mh.scope(() => {
    const options = { ...masking(), return: ['lse'] } as never;
    const sums = (mh.attention(q, k, v, options) as unknown as { lse: Tensor }).lse;
    return { shape: [1, 2, 3], data: sums.toFloat32() };
  });

  /** Calls every operation once, on tensors and caches that no case can reach. */
  const bird = mh.createCache({ numKvHeads: 2, headDim: 4, capacity: 8 });
  bird.append(k, v);
  const flown = mh.prepare({ q: q.shape, keys: 5, causal: 'bottomRight' });
  const [ownQ, ownK, ownV, ownOut] = [q, k, v, q].map(({ shape, data }) => mh.tensor(data, shape));
  const canary = (): string =>
    mh.scope(() => {
      const { out: attended } = bird.attend(ownQ!, { causal: 'bottomRight' });
      flown.run(ownQ!, ownK!, ownV!, ownOut!);
      const { output } = layer().forward(x);
      return digest([attended, mh.attention(q, k, v), ownOut, output]);
    });
  const keep = (): void => {
    for (const verb of Object.values(verbs)) verb.arguments();
    for (const make of [layer, model, block, op, filledCache, trainer]) make();
  };
  return { verbs, canary, keep };
}

/** Alters the arguments of a call; `same` is true if its result must not change. */
function change(r: Random, args: unknown[], mh: Multihead, other: Multihead): { same: boolean; what: string } {
  const places = placesIn(args);
  const place = r.pick(places);
  const { holder, name } = place;
  const ways: [string, boolean, () => void][] = [
    ['replaced', false, () => (holder[name] = hostileValue(r, mh, other))],
    ['replaced', false, () => (holder[name] = hostileValue(r, mh, other))],
    ['left out', false, () => (Array.isArray(holder) ? (holder[name] = undefined) : delete holder[name])],
    ['more', false, () => (holder[r.pick(['x', 'shape', 'seed'])] = hostileValue(r, mh, other))],
    ['disguised', true, () => disguise(r, place)],
  ];
  const [what, same, act] = r.pick(ways);
  act();
  return { same, what: `${what} ${name}` };
}

/** Returns the result of a call, or the error that it throws. */
function resultOf(call: () => unknown): { error?: MultiheadError; result?: unknown } {
  try {
    return { result: call() };
  } catch (error) {
    return { error: error as MultiheadError };
  }
}

/** A scope that stays open until the returned promise is settled. */
async function settled(result: unknown): Promise<void> {
  if (result instanceof Promise) result.catch(() => {});
  await new Promise((resolve) => setTimeout(resolve));
}

describe.each(builds)('hostile arguments, %s', (simd: Simd) => {
  it(`give an error or the right result (${calls} calls, seed ${runSeed})`, { timeout: 3_600_000 }, async () => {
    const [mh, other] = [await loadBuild(simd), await loadBuild(simd)];
    const { verbs, canary, keep } = verbsOf(mh);
    keep();
    const names = Object.keys(verbs);
    const right = new Map<string, string>();
    for (const name of names) {
      const verb = verbs[name] as Verb;
      const result = verb.call(...(verb.arguments() as never[]));
      right.set(name, digest(result));
      disposeAll(result);
      keep();
    }
    const song = canary();

    for (let index = 0; index < calls; index += 1) {
      const r = random(runSeed + index);
      const name = r.pick(names);
      const verb = verbs[name] as Verb;
      keep();
      const before = mh.memory();
      const args = copied(verb.arguments());
      const { same, what } = change(r, args, mh, other);
      const label = `MULTIHEAD_SEED=${runSeed + index}: ${name}, ${what}`;

      const { error, result } = resultOf(() => verb.call(...(args as never[])));
      if (error !== undefined && name !== 'scope') {
        const seen = `${label}: ${String(error)}\n${String((error as Error).stack)}`;
        expect(error.name, seen).toBe('MultiheadError');
        expect(error.code, seen).not.toMatch(/E_FATAL|E_LOAD/);
        expect(same, seen).toBe(false);
        // Errors must use JavaScript's names of arguments, not the core's; parameters and files keep their own names.
        if (error.code !== 'E_FORMAT' && error.argument !== 'stateDict') {
          expect(error.expected, seen).not.toMatch(/\{[a-z_.]+\}|\b(?!d_)[a-z]+_[a-z]{2,}/);
        }
      }
      if (same && error === undefined && name !== 'scope') expect(digest(result), label).toBe(right.get(name));
      if (name === 'scope') await settled(result);
      else if (error === undefined) disposeAll(result);
      keep();
      const after = mh.memory();
      expect({ live: after.live, bytes: after.bytes }, label).toEqual({
        live: before.live,
        bytes: before.bytes,
      });
      if (index % 8 === 0) expect(canary(), label).toBe(song);
    }
    expect(canary()).toBe(song);
  });
});
