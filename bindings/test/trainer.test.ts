// Training: gradients compared with finite differences of the definition in float64; updates, checkpoints, memory and
// lifetime; losses that are not finite; bad arguments.

import {
  readSafetensors,
  writeSafetensors,
  type Multihead,
  type MultiheadErrorCode,
  type PlainTensor,
  type Trainer,
  type TrainerOptions,
  type Transformer,
  type TransformerConfig,
} from 'multihead';
import { afterEach, describe, expect, it } from 'vitest';
import { builds, errorOf, expectRefused, expectWorks, loadBuild, openCountingBuild } from './builds.ts';
import { random } from './random.ts';
import * as reference from './transformer_reference.ts';

const [words, batch, length] = [7, 4, 6];

const small = {
  ...{ numLayers: 2, vocabSize: words, embedDim: 16, numHeads: 4, maxPositions: length },
  ...{ bias: false, norm: 'rmsNorm' },
} as const satisfies TransformerConfig;

/** The target is the previous token; the first position does not count. */
function batchOf(seed: number, readouts = 1): { tokens: Int32Array; targets: Int32Array } {
  const r = random(seed);
  const tokens = Int32Array.from({ length: batch * length }, () => r.int(0, words - 1));
  const targets = Int32Array.from({ length: tokens.length * readouts }, (_, i) => {
    const at = Math.floor(i / readouts);
    return at % length === 0 ? -1 : (tokens[at - 1] as number);
  });
  return { tokens, targets };
}

function modelOf(mh: Multihead, config: TransformerConfig = small, seed = 5): Transformer {
  const model = mh.transformer(config);
  model.initialize({ seed });
  return model;
}

/** The results of steps on the batches of these seeds. */
const run = (trainer: Trainer, first: number, last: number) =>
  Array.from({ length: last - first }, (_, at) => {
    const { tokens, targets } = batchOf(first + at);
    return trainer.step(tokens, targets, { batch });
  });

const bitsOf = (dict: Record<string, PlainTensor>) =>
  Object.fromEntries(
    Object.entries(dict).map(([name, { data }]) => {
      const { buffer, byteOffset, length: count } = data as Float32Array;
      return [name, [...new Uint32Array(buffer, byteOffset, count)]];
    }),
  );

/** The sum of cross-entropies, in float64. */
function lossOf(config: Transformer['config'], dict: Record<string, PlainTensor>, tokens: Int32Array, targets: Int32Array): number {
  const { logits } = reference.model(config, dict, tokens, batch);
  let sum = 0;
  targets.forEach((target, row) => {
    if (target < 0) return;
    const scores = Array.from({ length: words }, (_, c) => logits.data[row * words + c] as number);
    const largest = Math.max(...scores);
    const total = scores.reduce((all, score) => all + Math.exp(score - largest), 0);
    sum += largest + Math.log(total) - (scores[target] as number);
  });
  return sum;
}

describe.each(builds)('training, %s', async (simd) => {
  const mh = await loadBuild(simd);
  afterEach(() => {
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
    expectWorks(mh);
  });

  it('gradients are the slopes of the loss', () => {
    mh.scope(() => {
      const model = modelOf(mh, {
        ...{ numLayers: 2, vocabSize: words, embedDim: 8, numHeads: 2, maxPositions: length },
        ...{ mlpDim: 12, numReadouts: 2, numKvHeads: 1 },
      });
      const { tokens, targets } = batchOf(1, 2);
      const trainer = mh.trainer(model);
      trainer.accumulate(tokens, targets, { batch });
      const gradients = trainer.gradients();
      const dict = model.stateDict();
      const shapes = (of: Record<string, PlainTensor>) => Object.entries(of).map(([name, { shape }]) => [name, ...shape]);
      expect(shapes(gradients)).toEqual(shapes(dict));
      const r = random(2);
      for (const [name, { shape, data }] of Object.entries(dict)) {
        const direction = r.floats(data.length);
        const moved = (by: number) => {
          const numbers = Float64Array.from(data, (x, i) => x + by * (direction[i] as number));
          return lossOf(model.config, { ...dict, [name]: { shape, data: numbers as never } }, tokens, targets);
        };
        const slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
        const along = (gradients[name]?.data ?? new Float32Array()).reduce((sum, g, i) => sum + g * (direction[i] as number), 0);
        expect(Math.abs(along - slope), name).toBeLessThan(2e-5 * (1 + Math.abs(slope)) * Math.sqrt(data.length));
      }
    });
  });

  it('steps lower the loss, and say what they did', () => {
    mh.scope(() => {
      const model = modelOf(mh);
      const trainer = mh.trainer(model, { learningRate: 0.02, warmupSteps: 2, clipNorm: 1 });
      const before = model.stateDict();
      const results = run(trainer, 0, 120);
      expect(results[0]).toEqual({
        step: 1,
        loss: expect.closeTo(Math.log(words), 0) as number,
        gradientNorm: expect.any(Number) as number,
        learningRate: Math.fround(0.01),
        counted: batch * (length - 1),
        correct: expect.any(Number) as number,
      });
      const last = results.at(-1);
      expect(last?.step).toBe(120);
      expect(trainer.steps()).toBe(120);
      expect(last?.learningRate).toBe(Math.fround(0.02));
      expect(last?.loss).toBeLessThan(0.3);
      expect(last?.correct).toBeGreaterThan(17);
      expect(bitsOf(model.stateDict())).not.toEqual(bitsOf(before));
    });
  });

  it.each<[string, TrainerOptions]>([
    ['SGD', { optimizer: 'sgd', learningRate: 1, momentum: 0.9, nesterov: true, clipNorm: 0.5 }],
    ['a cosine and weight decay', { learningRate: 0.03, decay: 'cosine', decaySteps: 60, weightDecay: 0.01 }],
    ['recomputed activations', { learningRate: 0.02, recompute: true }],
  ])('works with %s', (_, options) => {
    mh.scope(() => {
      const results = run(mh.trainer(modelOf(mh), options), 0, 60);
      const mean = (some: typeof results) => some.reduce((sum, { loss }) => sum + loss, 0) / some.length;
      expect(mean(results.slice(-10))).toBeLessThan(0.7 * mean(results.slice(0, 10)));
    });
  });

  it('gives the same bits for the same seed, and others for another', () => {
    const dropping = { ...small, mlpDim: 8, dropout: 0.1, outDropout: 0.1, residualDropout: 0.1, embeddingDropout: 0.1 };
    const trained = (seed: number, options: TrainerOptions = {}) =>
      mh.scope(() => {
        const model = modelOf(mh, dropping);
        const results = run(mh.trainer(model, { seed, ...options }), 0, 5);
        return { results, bits: bitsOf(model.stateDict()) };
      });
    expect(trained(3)).toEqual(trained(3));
    expect(trained(3, { recompute: true })).toEqual(trained(3));
    expect(trained(3).results).not.toEqual(trained(4).results);
  });

  it('parts of a batch make one update', () => {
    mh.scope(() => {
      const { tokens, targets } = batchOf(9);
      const whole = modelOf(mh);
      const expected = mh.trainer(whole).step(tokens, targets, { batch });
      const model = modelOf(mh);
      const trainer = mh.trainer(model);
      const half = tokens.length / 2;
      trainer.accumulate(tokens.subarray(0, half), targets.subarray(0, half), { batch: batch / 2 });
      expect(trainer.steps()).toBe(0);
      expectRefused(mh, () => trainer.checkpoint(), 'E_OPTION', 'trainer', 'accumulate', 'update');
      expectRefused(mh, () => trainer.loadStateDict({}), 'E_OPTION', 'trainer');
      trainer.accumulate(tokens.subarray(half), targets.subarray(half), { batch: batch / 2 });
      const result = trainer.update();
      expect(result).toMatchObject({ step: 1, counted: expected.counted, correct: expected.correct });
      expect(result.loss).toBeCloseTo(expected.loss, 5);
      expect(result.gradientNorm).toBeCloseTo(expected.gradientNorm, 5);
      const error = expectRefused(mh, () => trainer.update(), 'E_OPTION', 'targets');
      expect(error.message).toMatch(/at least one/);
    });
  });

  it('takes the options of forward(), as if they were part of the model', () => {
    mh.scope(() => {
      const { tokens, targets } = batchOf(4);
      const loss = (config: TransformerConfig, options: object) => mh.trainer(modelOf(mh, config)).step(tokens, targets, { batch, ...options }).loss;
      expect(loss(small, {})).toBe(loss(small, { heads: {}, mask: undefined }));
      expect(loss({ ...small, softcap: 0.5 }, {})).toBe(loss(small, { softcap: 0.5 }));
      const scales = new Float32Array(8).fill(1);
      expect(loss(small, { heads: { scales } })).toBe(loss(small, {}));
      scales[7] = 0;
      expect(loss(small, { heads: { scales } })).not.toBe(loss(small, {}));
      expect(loss(small, { alibi: true })).not.toBe(loss(small, {}));
    });
  });

  it('a learning rate can be set', () => {
    mh.scope(() => {
      const trainer = mh.trainer(modelOf(mh), { learningRate: 0.5 });
      trainer.setLearningRate(0.25);
      expect(run(trainer, 0, 1)[0]?.learningRate).toBe(0.25);
      for (const wrong of [0, -1, NaN, Infinity, '1', null]) {
        expectRefused(mh, () => trainer.setLearningRate(wrong as number), 'E_OPTION', 'learningRate');
      }
      expect(run(trainer, 1, 2)[0]?.learningRate).toBe(0.25);
    });
  });

  it.each<[string, TrainerOptions]>([
    ['AdamW', { learningRate: 0.02, warmupSteps: 4, seed: 2n ** 64n - 2n }],
    ['SGD', { optimizer: 'sgd', learningRate: 0.3, momentum: 0.9, seed: 7 }],
    ['SGD without momentum', { optimizer: 'sgd', learningRate: 0.3 }],
  ])('goes on from a checkpoint with the same bits: %s', (_, options) => {
    mh.scope(() => {
      const config = { ...small, dropout: 0.2, residualDropout: 0.2 };
      const model = modelOf(mh, config);
      const trainer = mh.trainer(model, options);
      run(trainer, 0, 4);
      const file = trainer.checkpoint();
      const rest = run(trainer, 4, 8);

      const other = modelOf(mh, config, 99);
      const resumed = mh.trainer(other, { ...options, seed: 1 });
      resumed.restore(file);
      expect(resumed.steps()).toBe(4);
      expect(run(resumed, 4, 8)).toEqual(rest);
      expect(bitsOf(other.stateDict())).toEqual(bitsOf(model.stateDict()));
      expect(bitsOf(resumed.stateDict())).toEqual(bitsOf(trainer.stateDict()));
    });
  });

  it('checkpoints have the names and shapes of the core, which the native trainer reads', () => {
    mh.scope(() => {
      const model = modelOf(mh);
      const trainer = mh.trainer(model, { seed: 0x1_0004_0002_0003n });
      run(trainer, 0, 3);
      const dict = model.stateDict();
      const { tensors } = readSafetensors(trainer.checkpoint());
      const expected = ['', 'optimizer.mean.', 'optimizer.variance.'].flatMap((prefix) =>
        Object.entries(dict).map(([name, { shape }]) => [prefix + name, shape]),
      );
      expect(
        Object.entries(tensors)
          .map(([name, { shape }]) => [name, shape])
          .sort(),
      ).toEqual([...expected, ['trainer.state', [8]]].sort());
      expect([...(tensors['trainer.state']?.data ?? [])]).toEqual([3, 0, 0, 0, 3, 2, 4, 1]);
    });
  });

  it('a checkpoint that does not fit changes nothing', () => {
    mh.scope(() => {
      const model = modelOf(mh);
      const trainer = mh.trainer(model, { learningRate: 0.02 });
      run(trainer, 0, 2);
      const file = trainer.checkpoint();
      const before = bitsOf(trainer.stateDict());
      const dict = trainer.stateDict();
      const { 'trainer.state': state, ...rest } = dict;
      const wrongState = { shape: [8], data: new Float32Array(8).fill(0.5) };
      const other = mh.trainer(modelOf(mh, { ...small, numLayers: 1 }));
      const plain = mh.trainer(modelOf(mh), { optimizer: 'sgd' });
      const altered = (change: object) => writeSafetensors({ ...dict, ...change });
      const cases: [unknown, MultiheadErrorCode, string | RegExp][] = [
        [file.subarray(0, file.length - 1), 'E_FORMAT', ''],
        [file.subarray(0, 100), 'E_FORMAT', ''],
        [new Uint8Array(9), 'E_FORMAT', ''],
        [writeSafetensors(rest), 'E_SHAPE', /missing: trainer\.state/],
        [altered({ 'trainer.state': wrongState }), 'E_SHAPE', 'trainer.state'],
        [altered({ more: state }), 'E_SHAPE', /unexpected: more/],
        [altered({ 'output.weight': state }), 'E_SHAPE', /output\.weight \(8\) instead of \(7, 16\)/],
        [other.checkpoint(), 'E_SHAPE', /missing: .*layers\.1\./],
        [plain.checkpoint(), 'E_SHAPE', /missing: .*optimizer\.mean/],
        [null, 'E_OPTION', ''],
        [[1, 2], 'E_OPTION', ''],
      ];
      for (const [bytes, code, words] of cases) {
        const error = errorOf(() => trainer.restore(bytes as Uint8Array));
        expect(error.code, error.message).toBe(code);
        expect(error.message).toMatch(words);
        expect(bitsOf(trainer.stateDict())).toEqual(before);
      }
      trainer.restore(file.buffer);
      expect(bitsOf(trainer.stateDict())).toEqual(before);
    });
  });

  it('shares its parameters with the model, and neither needs the other', () => {
    const model = modelOf(mh);
    const alone = mh.memory().bytes;
    const trainer = mh.trainer(model);
    run(trainer, 0, 2);
    const { bytes } = mh.memory();
    expect(bytes).toBe(trainer.bytes());
    expect(trainer.bytes()).toBeGreaterThan(4 * alone);
    const second = mh.trainer(model);
    expect(mh.memory().bytes).toBe(bytes + second.bytes() - alone);
    second.dispose();

    const before = bitsOf(model.stateDict());
    model.initialize({ seed: 6 });
    expect(mh.memory().bytes).toBe(bytes + alone);
    const replaced = bitsOf(model.stateDict());
    expect(replaced).not.toEqual(before);
    const { tokens, targets } = batchOf(2);
    for (const options of [{ batch }, { batch, scale: 1 }]) {
      expectRefused(mh, () => trainer.step(tokens, targets, options), 'E_OPTION', 'trainer', 'make a new trainer');
      expectRefused(mh, () => trainer.accumulate(tokens, targets, options), 'E_OPTION', 'trainer', 'make a new trainer');
    }
    expect(bitsOf(model.stateDict())).toEqual(replaced);
    expect(trainer.steps()).toBe(2);
    trainer.dispose();
    expect(mh.memory().bytes).toBe(alone);
    const next = mh.trainer(model);
    model.dispose();
    expect(mh.memory()).toMatchObject({ live: 1, bytes: next.bytes() });
    run(next, 3, 4);
    const { 'trainer.state': _, ...rest } = next.stateDict();
    next.dispose();
    next.dispose();
    expect(mh.memory().bytes).toBe(0);

    const kept = modelOf(mh);
    mh.trainer(kept).dispose();
    kept.loadStateDict(Object.fromEntries(Object.entries(rest).filter(([name]) => !name.startsWith('optimizer.'))));
    kept.dispose();
  });

  it('is owned by scopes and by using', () => {
    const model = modelOf(mh);
    const outside = mh.scope(() => {
      mh.trainer(model);
      return mh.trainer(model);
    });
    expect(mh.memory().live).toBe(2);
    outside[Symbol.dispose]();
    expect(mh.memory().live).toBe(1);
    model.dispose();
  });

  it('a disposed one refuses every call', () => {
    const model = modelOf(mh);
    const trainer = mh.trainer(model);
    const { tokens, targets } = batchOf(1);
    trainer.dispose();
    expect(trainer.disposed).toBe(true);
    const calls: (() => unknown)[] = [
      () => trainer.step(tokens, targets, { batch }),
      () => trainer.accumulate(tokens, targets),
      () => trainer.update(),
      () => trainer.setLearningRate(1),
      () => trainer.steps(),
      () => trainer.bytes(),
      () => trainer.gradients(),
      () => trainer.stateDict(),
      () => trainer.loadStateDict({}),
      () => trainer.checkpoint(),
      () => trainer.restore(new Uint8Array(8)),
    ];
    for (const call of calls) expectRefused(mh, call, 'E_DISPOSED', 'trainer');
    model.dispose();
    expectRefused(mh, () => mh.trainer(model), 'E_DISPOSED', 'transformer');
    expectRefused(mh, () => model.initialize(), 'E_DISPOSED', 'transformer');
  });

  it('a getter that disposes the trainer cannot make it write to freed memory', () => {
    const model = modelOf(mh);
    const trainer = mh.trainer(model);
    const { tokens, targets } = batchOf(1);
    const options = {
      get batch() {
        trainer.dispose();
        return batch;
      },
    };
    expect(errorOf(() => trainer.step(tokens, targets, options)).code).toBe('E_DISPOSED');
    model.dispose();
  });

  it('1000 tiny steps allocate nothing', async () => {
    const { mh: own, allocations } = await openCountingBuild(simd);
    const model = own.transformer({ numLayers: 1, vocabSize: 5, embedDim: 4, numHeads: 1 });
    model.initialize();
    const trainer = own.trainer(model);
    const tokens = Int32Array.of(0, 1, 2, 3);
    const options = { batch: 2 };
    trainer.step(tokens, tokens, options);
    const before = own.memory();
    const counted = allocations();
    for (let step = 0; step < 1000; step += 1) trainer.step(tokens, tokens, options);
    expect(own.memory()).toEqual(before);
    expect(allocations()).toBe(counted);
    expect(trainer.steps()).toBe(1001);
  });

  it('inputs may be of any size in turn, and views of the own memory', () => {
    mh.scope(() => {
      const trainer = mh.trainer(modelOf(mh));
      const { tokens, targets } = batchOf(1);
      trainer.step(tokens.subarray(0, 6), targets.subarray(0, 6));
      trainer.step(tokens, targets, { batch });
      const few = trainer.step(tokens.subarray(0, 4), targets.subarray(0, 4), { batch: 2 });
      expect(few.counted).toBe(3);
      const memory = mh.zeros([tokens.length]);
      const inside = new Int32Array(memory.data.buffer, memory.data.byteOffset, tokens.length);
      inside.set(tokens);
      expect(trainer.step(inside, targets, { batch }).counted).toBe(20);
    });
  });

  it('a loss that is not finite names the step and the parameter, and changes nothing', () => {
    mh.scope(() => {
      const model = modelOf(mh);
      const dict = model.stateDict();
      const trained = mh.trainer(model);
      run(trained, 0, 2);
      const broken = { ...trained.stateDict() };
      const name = 'layers.1.self_attn.out_proj.weight';
      const { shape, data } = broken[name] as PlainTensor;
      broken[name] = { shape, data: data.slice().fill(NaN, 3, 4) };
      trained.loadStateDict(broken);
      const before = bitsOf(trained.stateDict());
      const { tokens, targets } = batchOf(3);
      for (let round = 0; round < 2; round += 1) {
        const step = () => trained.step(tokens, targets, { batch });
        expectRefused(mh, step, 'E_OPTION', 'targets', 'step 3', name, 'finite');
        expect(bitsOf(trained.stateDict())).toEqual(before);
      }
      expect(trained.steps()).toBe(2);

      // The parameters are finite, but their products are not.
      model.loadStateDict(dict);
      const large = mh.trainer(model);
      large.loadStateDict({
        ...large.stateDict(),
        'norm.weight': { shape: [16], data: new Float32Array(16).fill(3e38) },
      });
      const error = errorOf(() => large.step(tokens, targets, { batch }));
      expect(error).toMatchObject({ code: 'E_OPTION', argument: 'targets' });
      expect(error.message).toMatch(/step 1/);
    });
  });

  it.each<[string, object, string, ...string[]]>([
    ['a learning rate of 0', { learningRate: 0 }, 'learningRate', '0'],
    ['a learning rate of NaN', { learningRate: NaN }, 'learningRate', 'NaN'],
    ['a learning rate below 0', { learningRate: -1e-3 }, 'learningRate'],
    ['an infinite learning rate', { learningRate: Infinity }, 'learningRate'],
    ['a text', { learningRate: '1' }, 'learningRate', '"1"'],
    ['another optimizer', { optimizer: 'adam' }, 'optimizer', 'adamW', 'sgd'],
    ['another decay', { decay: 'linear' }, 'decay', 'constant', 'cosine'],
    ['a cosine without an end', { decay: 'cosine' }, 'decaySteps', '1'],
    ['half a step', { warmupSteps: 0.5 }, 'warmupSteps', '0.5'],
    ['steps below 0', { decaySteps: -1 }, 'decaySteps'],
    ['beta1 of 1', { beta1: 1 }, 'beta1', 'less than 1'],
    ['beta2 of NaN', { beta2: NaN }, 'beta2'],
    ['a momentum of 1', { optimizer: 'sgd', momentum: 1 }, 'momentum'],
    ['momentum of AdamW', { momentum: 0.5 }, 'momentum', 'SGD', '0.5'],
    ['nesterov without momentum', { optimizer: 'sgd', nesterov: true }, 'nesterov', 'momentum'],
    ['a number for a flag', { nesterov: 1 }, 'nesterov'],
    ['a number for a flag', { recompute: 1 }, 'recompute'],
    ['an eps below 0', { eps: -1 }, 'eps'],
    ['a weight decay below 0', { weightDecay: -1 }, 'weightDecay'],
    ['an infinite norm', { clipNorm: Infinity }, 'clipNorm'],
    ['a final rate of NaN', { decay: 'cosine', decaySteps: 2, finalLearningRate: NaN }, 'finalLearningRate'],
    ['a seed below 0', { seed: -1 }, 'seed'],
    ['an unknown option', { lr: 1 }, 'lr', 'learningRate'],
    ['an array', [], 'trainer', 'optimizer'],
  ])('refuses %s', (_, options, argument, ...words) => {
    const model = modelOf(mh);
    expectRefused(mh, () => mh.trainer(model, options), 'E_OPTION', argument, ...words);
    model.dispose();
  });

  it('refuses what is no model, and a model without parameters', async () => {
    const other = await loadBuild(simd);
    const foreign = modelOf(other);
    const empty = mh.transformer(small);
    const module = mh.multiHeadAttention({ embedDim: 4, numHeads: 2 });
    for (const wrong of [undefined, null, {}, module, mh, 'model']) {
      expectRefused(mh, () => mh.trainer(wrong as never), 'E_OPTION', 'model', 'transformer()');
    }
    expectRefused(mh, () => mh.trainer(foreign), 'E_OPTION', 'model', 'another');
    expectRefused(mh, () => mh.trainer(empty), 'E_OPTION', 'transformer', 'initialize()');
    foreign.dispose();
    empty.dispose();
    module.dispose();
  });

  it('refuses bad steps, and is as before', () => {
    mh.scope(() => {
      const trainer = mh.trainer(modelOf(mh));
      const { tokens, targets } = batchOf(1);
      trainer.step(tokens, targets, { batch });
      const before = bitsOf(trainer.stateDict());
      const changed = (array: Int32Array, at: number, value: number) => array.map((each, i) => (i === at ? value : each));
      const few = tokens.subarray(0, 5);
      const cases: [unknown, unknown, unknown, MultiheadErrorCode, string, ...string[]][] = [
        [[1, 2], targets, { batch }, 'E_OPTION', 'tokens', 'Int32Array', 'number[]'],
        [tokens, Float32Array.from(targets), { batch }, 'E_OPTION', 'targets', 'Int32Array'],
        [tokens, undefined, { batch }, 'E_OPTION', 'targets'],
        [tokens, targets.subarray(1), { batch }, 'E_SHAPE', 'targets', '24', '23'],
        [tokens, changed(targets, 3, words), { batch }, 'E_OPTION', 'targets', '6', '7'],
        [tokens, changed(targets, 3, -2), { batch }, 'E_OPTION', 'targets', '-2'],
        [changed(tokens, 3, words), targets, { batch }, 'E_OPTION', 'tokens', '7'],
        [tokens, targets.slice().fill(-1), { batch }, 'E_OPTION', 'targets', 'at least one'],
        [tokens, targets, { batch: 5 }, 'E_SHAPE', 'tokens', '5', '24'],
        [tokens, targets, {}, 'E_OPTION', 'tokens', 'maxPositions', '24'],
        [tokens, targets, { batch: 0 }, 'E_OPTION', 'batch', '0'],
        [tokens, targets, { batch: '4' }, 'E_OPTION', 'batch'],
        [tokens, targets, null, 'E_OPTION', 'step', 'batch'],
        [few, targets.subarray(0, 5), { batch: 1, softcap: -1 }, 'E_OPTION', 'softcap'],
        [tokens, targets, { batch, training: true }, 'E_OPTION', 'training', 'trains'],
        [tokens, targets, { batch, dropoutSeed: 1 }, 'E_OPTION', 'dropoutSeed', 'seed'],
        [tokens, targets, { batch, causal: false }, 'E_OPTION', 'causal', "model's"],
        [tokens, targets, { batch, return: [] }, 'E_OPTION', 'return', 'forward'],
        [tokens, targets, { batch, heads: { skipOutProj: true } }, 'E_OPTION', 'skipOutProj'],
        [tokens, targets, { batch, heads: { scales: new Float32Array(3) } }, 'E_SHAPE', 'heads.scales', 'one per head of each layer'],
      ];
      for (const [a, b, options, code, argument, ...words] of cases) {
        for (const verb of ['step', 'accumulate'] as const) {
          if (words[0] === 'at least one' && verb === 'accumulate') continue;
          const call = () => trainer[verb](a as Int32Array, b as Int32Array, options as object);
          expectRefused(mh, call, code, options === null ? verb : argument, ...words);
        }
        expect(bitsOf(trainer.stateDict())).toEqual(before);
      }
      expect(trainer.steps()).toBe(1);
    });
  });
});

describe('initialize()', () => {
  it('gives the same bits in every build, of the standard deviations that it states', async () => {
    const models = await Promise.all(builds.map(async (simd) => modelOf(await loadBuild(simd), { ...small, mlpDim: 64, norm: 'layerNorm' })));
    const [first, ...rest] = models.map((model) => model.stateDict());
    for (const dict of rest) expect(bitsOf(dict)).toEqual(bitsOf(first!));
    const deviation = (name: string) => {
      const { data } = first![name] as PlainTensor;
      return Math.sqrt(data.reduce((sum, x) => sum + x * x, 0) / data.length) * 4;
    };
    expect(deviation('layers.0.self_attn.in_proj_weight')).toBeCloseTo(1, 1);
    expect(deviation('layers.0.self_attn.out_proj.weight')).toBeCloseTo(0.7, 1);
    expect(Math.abs(deviation('output.weight') - 0.5)).toBeLessThan(0.1);
    expect(Math.abs(deviation('embedding.weight') - 0.5)).toBeLessThan(0.1);
    expect(new Set(first!['norm.weight']?.data)).toEqual(new Set([1]));
    expect(new Set(first!['norm.bias']?.data)).toEqual(new Set([0]));
    models.forEach((model) => model.dispose());
  });

  it('takes factors and names, and refuses others', async () => {
    const mh = await loadBuild('simd128');
    const model = mh.transformer({ ...small, bias: true, norm: 'layerNorm' });
    expectRefused(mh, () => model.forward(new Int32Array(2)), 'E_OPTION', 'transformer', 'initialize()');
    model.initialize({ seed: 2n ** 63n, weight: 0, names: 'gpt2' });
    const dict = model.stateDict();
    expect(dict['h.0.attn.c_attn.weight']).toEqual({ shape: [16, 48], data: new Float32Array(768) });
    for (const [options, argument] of [
      [{ seed: -1 }, 'seed'],
      [{ weight: -1 }, 'weight'],
      [{ residual: NaN }, 'residual'],
      [{ output: Infinity }, 'output'],
      [{ embedding: '1' }, 'embedding'],
      [{ names: 'keras' }, 'names'],
      [{ gain: 1 }, 'gain'],
      [null, 'initialize'],
    ] as const) {
      expectRefused(mh, () => model.initialize(options as never), 'E_OPTION', argument);
      expect(model.stateDict()).toEqual(dict);
    }
    model.dispose();
    expect(mh.memory().bytes).toBe(0);
  });
});
