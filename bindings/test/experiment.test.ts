// The two experiments: the data and numbers of the native library, evaluations, the shared model, checkpoints, memory and
// lifetime, bad arguments.

import type { EvaluationOptions, Experiment, ExperimentKind, ExperimentOptions } from 'multihead';
import { createExperiment } from 'multihead/lab';
import { train } from 'multihead/training';
import { afterEach, describe, expect, it } from 'vitest';
import { createExperiment as createOwn } from '../src/api/lab.ts';
import { builds, errorOf, expectRefused, expectWorks, loadBuild, openCountingBuild } from './builds.ts';

const tokensOf = (count: number): number => 32 * count;

/** FNV-1a over the numbers as 32-bit little-endian words. */
function hashOf(...lists: Int32Array[]): string {
  let hash = 0xcbf29ce484222325n;
  for (const list of lists) {
    for (const byte of new Uint8Array(list.buffer, list.byteOffset, list.byteLength)) {
      hash = ((hash ^ BigInt(byte)) * 0x100000001b3n) & 0xffffffffffffffffn;
    }
  }
  return hash.toString(16);
}

const lossesOf = (experiment: Experiment, steps: number): number[] => Array.from({ length: steps }, () => experiment.step().loss);

/**
 * Results of native runs: the hash of the held-out sequences 3 to 6, the losses of the first five steps, and then the
 * loss and the accuracy on 32 held-out sequences. tests/nn/training/experiments_test.cc has the same numbers.
 */
const native: [ExperimentKind, bigint, string, number[], number, number][] = [
  ['fourJobs', 1n, 'c7ac0ec89a53ca9c', [3.265669, 3.248696, 3.231584, 3.197686, 3.113999], 3.106198, 0.081531],
  ['induction', 0x123456789abcdefn, '6d00441ae988eaff', [3.543403, 3.591206, 3.549867, 3.582317, 3.530126], 3.57092, 0.030973],
];

describe.each(builds)('experiments, %s', async (simd) => {
  const mh = await loadBuild(simd);
  afterEach(() => {
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
    expectWorks(mh);
  });

  it.each(native)('%s has the data and the losses of a native run', (kind, seed, hash, losses, loss, accuracy) => {
    using experiment = createExperiment(mh, { kind, seed });
    const { tokens, targets } = experiment.heldOut(3, 4);
    expect(tokens.length).toBe(tokensOf(4));
    expect(targets.length).toBe(tokensOf(4) * experiment.jobs.length);
    expect(hashOf(tokens, targets)).toBe(hash);
    lossesOf(experiment, 5).forEach((each, step) => {
      expect(Math.abs(each - (losses[step] as number)), `step ${step}`).toBeLessThan(1e-4);
    });
    const evaluation = experiment.evaluate({ sequences: 32 });
    expect(Math.abs(evaluation.loss - loss)).toBeLessThan(1e-4);
    expect(evaluation.accuracy).toBeCloseTo(accuracy, 2);
  });

  it('says what it fills in', () => {
    const filled = (options?: ExperimentOptions) => {
      using experiment = createExperiment(mh, options);
      const { jobs, patterns, attentionOptions } = experiment;
      return { options: experiment.options, jobs, patterns, attentionOptions };
    };
    const jobs = ['previous token', 'two back', 'latest vowel', 'latest star'];
    const common = { seed: 1, positions: 'rope', learningRate: 0.01, recompute: false };
    expect(filled()).toEqual({
      options: { ...common, kind: 'fourJobs', numHeads: 4, numLayers: 1, steps: 600, batch: 16 },
      jobs,
      patterns: jobs,
      attentionOptions: {},
    });
    const given = { seed: 2n ** 64n - 1n, positions: 'alibi', learningRate: 0.5, recompute: true, steps: 7 } as const;
    expect(filled({ kind: 'induction', ...given })).toEqual({
      options: { kind: 'induction', numHeads: 2, numLayers: 2, batch: 32, ...given },
      jobs: ['next token'],
      patterns: ['previous token', 'induction'],
      attentionOptions: { alibi: true },
    });
  });

  it('learns, and a muted head shows in what the model gets right', () => {
    using experiment = createExperiment(mh, { steps: 120, batch: 8 });
    const before = experiment.evaluate({ sequences: 16 });
    expect(experiment.finished).toBe(false);
    while (!experiment.finished) experiment.step();
    expect(experiment.steps()).toBe(120);
    const after = experiment.evaluate({ sequences: 16, ablation: true });
    expect(after.loss).toBeLessThan(before.loss - 0.5);
    expect(after.accuracy).toBeGreaterThan(before.accuracy + 0.1);
    const losses = after.mutedAccuracy.map((muted, i) => (after.jobAccuracy[i % 4] as number) - muted);
    expect(Math.max(...losses)).toBeGreaterThan(0.1);
    expect(experiment.step().step).toBe(121);
  });

  it('evaluations have the documented shapes, and their parts add up', () => {
    using experiment = createExperiment(mh, { kind: 'induction', numHeads: 4, batch: 4 });
    lossesOf(experiment, 3);
    const all = experiment.evaluate({ sequences: 70, ablation: true });
    const sizes = [all.jobAccuracy, all.attention, all.mutedAccuracy].map(({ length }) => length);
    expect(sizes).toEqual([1, 2 * 4 * 2, 2 * 4]);
    expect(all.jobAccuracy[0]).toBe(all.accuracy);
    expect(all.attention.every((weight) => weight >= 0 && weight <= 1)).toBe(true);
    const [previous, induction] = all.headOfPattern as [number, number];
    expect([previous < 4, induction >= 4, induction < 8]).toEqual([true, true, true]);
    const headScales = new Float32Array(8).fill(1);
    expect(experiment.evaluate({ sequences: 70, headScales }).loss).toBe(all.loss);
    headScales[5] = 0;
    const muted = experiment.evaluate({ sequences: 70, attention: false, headScales });
    expect(muted.accuracy).toBe(all.mutedAccuracy[5]);
    expect([muted.attention.length, muted.mutedAccuracy.length, muted.headOfPattern]).toEqual([0, 0, []]);
  });

  it('evaluations do not change the training', () => {
    using plain = createExperiment(mh, { batch: 2 });
    using watched = createExperiment(mh, { batch: 2, recompute: true });
    const losses = Array.from({ length: 4 }, () => {
      watched.evaluate({ sequences: 2, ablation: true });
      watched.heldOut(0, 3);
      watched.model.forward(watched.heldOut(0, 1).tokens).logits.dispose();
      return watched.step().loss;
    });
    expect(losses).toEqual(lossesOf(plain, 4));
    expect(errorOf(() => createExperiment(mh, { numHeads: 3 })).argument).toBe('numHeads');
  });

  it.each(['rope', 'learned', 'alibi', 'none'] as const)('its model computes what it evaluates: %s', (positions) => {
    mh.scope(() => {
      const experiment = createExperiment(mh, { positions, batch: 2, numLayers: 2 });
      lossesOf(experiment, 3);
      const { model, attentionOptions: options } = experiment;
      expect(model).toBe(experiment.model);
      const { tokens, targets } = experiment.heldOut(0, 2);
      const { logits, traces } = model.forward(tokens, { ...options, batch: 2, trace: ['weights'] });
      const evaluation = experiment.evaluate({ sequences: 2 });
      const scores = logits.toFloat32();
      let [sum, counted] = [0, 0];
      targets.forEach((target, row) => {
        if (target < 0) return;
        const of = scores.subarray(24 * row, 24 * (row + 1));
        sum += Math.log(of.reduce((all, score) => all + Math.exp(score), 0)) - (of[target] as number);
        counted += 1;
      });
      expect(sum / counted).toBeCloseTo(evaluation.loss, 5);
      // Attention of head 3 in layer 1 to the previous token, from position 1 on.
      const weights = traces[1]?.weights?.data as Float32Array;
      let attention = 0;
      for (let sequence = 0; sequence < 2; sequence += 1) {
        for (let at = 1; at < 32; at += 1) {
          attention += weights[((sequence * 4 + 3) * 32 + at) * 32 + at - 1] as number;
        }
      }
      expect(attention / 62).toBeCloseTo(evaluation.attention[(4 + 3) * 4] as number, 5);

      const { numLayers, vocabSize, embedDim, numHeads, numReadouts, rope, maxPositions } = model.config;
      const copy = mh.transformer({
        ...{ numLayers, vocabSize, embedDim, numHeads, numReadouts, rope, maxPositions },
        ...{ bias: false, norm: 'rmsNorm', normAffine: false },
      });
      copy.loadStateDict(model.stateDict());
      const again = copy.forward(tokens, { ...options, batch: 2 }).logits;
      expect(again.toFloat32()).toEqual(scores);
      const cache = model.createCache({ capacity: 8 });
      const step = model.step(tokens.subarray(0, 3), cache, options).logits.toFloat32();
      step.forEach((each, i) => expect(each).toBeCloseTo(scores[i] as number, 4));
      experiment.step();
      expect(model.forward(tokens, { ...options, batch: 2 }).logits.toFloat32()).not.toEqual(scores);
    });
  });

  it('nothing that is done to its model changes the experiment', () => {
    using experiment = createExperiment(mh, { batch: 2 });
    const { model } = experiment;
    const dict = model.stateDict();
    expectRefused(mh, () => model.initialize(), 'E_OPTION', 'transformer', 'of an experiment');
    expectRefused(mh, () => model.loadStateDict(dict), 'E_OPTION', 'transformer', /mh\.transformer\(\)/);
    expectRefused(mh, () => mh.trainer(model), 'E_OPTION', 'transformer', 'a trainer');
    const bytes = mh.memory().bytes;
    expect(bytes).toBe(experiment.bytes());
    model.dispose();
    expect(mh.memory()).toMatchObject({ live: 1, bytes });
    experiment.step();
    expect(experiment.model.stateDict()).not.toEqual(dict);
    expect(experiment.model).not.toBe(model);
  });

  it('goes on from a checkpoint with the same bits', () => {
    using whole = createExperiment(mh, { seed: 9, batch: 4, positions: 'learned' });
    using other = createExperiment(mh, { seed: 9, batch: 4, positions: 'learned' });
    using single = createExperiment(mh, { seed: 9, numLayers: 2, positions: 'learned' });
    lossesOf(whole, 3);
    const file = whole.checkpoint();
    const dict = whole.stateDict();
    const rest = lossesOf(whole, 3);
    other.restore(file);
    expect(other.steps()).toBe(3);
    expect(lossesOf(other, 3)).toEqual(rest);
    other.loadStateDict(dict);
    expect(lossesOf(other, 3)).toEqual(rest);
    const after = other.stateDict();
    expect(errorOf(() => other.restore(file.subarray(0, 99))).code).toBe('E_FORMAT');
    expect(errorOf(() => other.restore(single.checkpoint())).code).toBe('E_SHAPE');
    expectRefused(mh, () => other.loadStateDict({}), 'E_SHAPE', 'stateDict', 'missing');
    for (const [options, argument, expected] of [
      [{ numHeads: 2 }, 'numHeads', '2, as in the state'],
      [{ positions: 'alibi' }, 'positions', '"alibi", as in the state'],
    ] as const) {
      using another = createExperiment(mh, { batch: 4, positions: 'learned', ...options });
      const error = errorOf(() => other.restore(another.checkpoint()));
      expect([error.code, error.argument, error.expected]).toEqual(['E_OPTION', argument, expected]);
    }
    const changing = { ...dict, 'run.positions': { shape: [1], data: Float32Array.of(2) } };
    expect(errorOf(() => other.loadStateDict(changing)).argument).toBe('positions');
    for (const dtype of ['f16', 'bf16'] as const) {
      const halves = mh.tensor(Float32Array.of(2), [1], { dtype });
      const error = errorOf(() => other.loadStateDict({ ...dict, 'run.positions': halves }));
      expect([error.argument, error.expected]).toEqual(['positions', '"alibi", as in the state']);
      halves.dispose();
    }
    other.loadStateDict(after);
    // A state without these tensors, such as a trainer's, is accepted as a state of this experiment.
    const { 'run.heads': heads, 'run.positions': positions, ...without } = dict;
    expect([heads, positions]).toMatchObject([{ shape: [1] }, { shape: [1] }]);
    expect(other.stateDict()).toEqual(after);
    other.loadStateDict(without);
    expect(lossesOf(other, 3)).toEqual(rest);
  });

  it('is trained by the loop of multihead/training', async () => {
    const [experiment, plain] = [{ steps: 6, batch: 2 }, { batch: 2 }].map((each) => createExperiment(mh, each)) as [Experiment, Experiment];
    const seen: [number, number][] = [];
    for await (const { step, loss } of train({ experiment, every: 2 })) seen.push([step, loss]);
    const losses = lossesOf(plain, 6);
    expect(seen).toEqual([2, 4, 6].map((step) => [step, losses[step - 1]]));
    expect(experiment.finished).toBe(true);
    for await (const { step } of train({ experiment, steps: 7 })) seen.push([step, 0]);
    expect(experiment.steps()).toBe(7);
    for (const [options, argument] of [
      [{ experiment: {} }, 'experiment'],
      [{ experiment: null }, 'experiment'],
      [{ experiment, trainer: experiment }, 'trainer'],
      [{ experiment, batches: [] }, 'batches'],
      [{ experiment, steps: -1 }, 'steps'],
    ] as const) {
      expect(errorOf(() => train(options as never))).toMatchObject({ code: 'E_OPTION', argument });
    }
    experiment.dispose();
    await expect(train({ experiment })[Symbol.asyncIterator]().next()).rejects.toMatchObject({ code: 'E_DISPOSED' });
    plain.dispose();
  });

  it('is owned by scopes and by using, with its model', () => {
    const kept = mh.scope(() => {
      createExperiment(mh).model.stateDict();
      const experiment = createExperiment(mh);
      expect(experiment.model.disposed).toBe(false);
      return experiment;
    });
    const { model } = kept;
    expect(mh.memory().live).toBe(2);
    expect(kept.step().step).toBe(1);
    kept[Symbol.dispose]();
    kept.dispose();
    expect([kept.disposed, model.disposed]).toEqual([true, true]);
    const calls: (() => unknown)[] = [
      () => kept.step(),
      () => kept.evaluate(),
      () => kept.heldOut(0, 1),
      () => kept.model,
      () => kept.steps(),
      () => kept.finished,
      () => kept.bytes(),
      () => kept.stateDict(),
      () => kept.loadStateDict({}),
      () => kept.checkpoint(),
      () => kept.restore(new Uint8Array(8)),
    ];
    for (const call of calls) expectRefused(mh, call, 'E_DISPOSED', 'experiment');
    expectRefused(mh, () => model.forward(new Int32Array(4)), 'E_DISPOSED', 'transformer');
  });

  it('100 rounds of training, evaluation and reset leave nothing', () => {
    const round = (seed: number) =>
      mh.scope(() => {
        const experiment = createExperiment(mh, { kind: seed % 2 ? 'induction' : 'fourJobs', batch: 1, seed });
        experiment.step();
        const { tokens } = experiment.heldOut(0, 1);
        experiment.evaluate({ sequences: 1, ablation: true });
        experiment.model.forward(tokens, { trace: ['weights'] });
        experiment.restore(experiment.checkpoint());
        expect(() => experiment.evaluate({ sequences: 0 })).toThrow();
        expect(mh.memory().bytes).toBeGreaterThan(experiment.bytes());
      });
    round(0);
    round(1);
    const { heap } = mh.memory();
    for (let seed = 2; seed < 100; seed += 1) round(seed);
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0, heap });
  });

  it('a getter that disposes it cannot make it read freed memory', () => {
    const experiment = createExperiment(mh, { batch: 1 });
    const { model } = experiment;
    const disposing = {
      get sequences() {
        experiment.dispose();
        return 1;
      },
    };
    expect(errorOf(() => experiment.evaluate(disposing)).code).toBe('E_DISPOSED');
    const other = createExperiment(mh, { batch: 1 });
    const inForward = {
      get batch() {
        other.dispose();
        return 1;
      },
    };
    expect(errorOf(() => other.model.forward(new Int32Array(2), inForward)).code).toBe('E_DISPOSED');
    expect(model.disposed).toBe(true);
  });

  it('steps allocate nothing after the first', async () => {
    const { mh: own, allocations } = await openCountingBuild(simd);
    const experiment = createOwn(own, { batch: 2 });
    experiment.step();
    const before = own.memory();
    const counted = allocations();
    lossesOf(experiment, 20);
    expect([allocations(), own.memory()]).toEqual([counted, before]);
  });

  it.each<[keyof ExperimentOptions | 'experiment' | 'more', unknown[]]>([
    ['kind', ['jobs', 0, null]],
    ['positions', ['sinusoidal', 4]],
    ['numHeads', [3, 0, -1, 128, 0.5, '4', 2 ** 40]],
    ['numLayers', [0, 65, 1.5]],
    ['steps', [0, -1, NaN]],
    ['batch', [0, 65_537, true]],
    ['seed', [-1, 0.5, 2n ** 64n, '1']],
    ['learningRate', [0, -1, NaN, Infinity, '0.1']],
    ['recompute', [1, 'no']],
    ['more', [1]],
  ])('refuses a wrong %s', (name, values) => {
    for (const value of values) {
      expectRefused(mh, () => createExperiment(mh, { [name]: value } as never), 'E_OPTION', name);
    }
    expectRefused(mh, () => createExperiment(mh, null as never), 'E_OPTION', 'experiment');
  });

  it('refuses evaluations and held-out sequences that do not fit', () => {
    using experiment = createExperiment(mh);
    const evaluate = (options: unknown) => () => experiment.evaluate(options as EvaluationOptions);
    for (const sequences of [0, -1, 0.5, 2 ** 21, '8']) {
      expectRefused(mh, evaluate({ sequences }), 'E_OPTION', 'sequences');
    }
    expectRefused(mh, evaluate({ attention: 1 }), 'E_OPTION', 'attention');
    expectRefused(mh, evaluate({ ablation: 'yes' }), 'E_OPTION', 'ablation');
    expectRefused(mh, evaluate({ headScales: [1, 1, 1, 1] }), 'E_OPTION', 'headScales');
    expectRefused(mh, evaluate({ headScales: new Float32Array(3) }), 'E_SHAPE', 'headScales', '4 values');
    expectRefused(mh, evaluate({ headScales: new Float32Array(0) }), 'E_SHAPE', 'headScales');
    expectRefused(mh, evaluate({ steps: 1 }), 'E_OPTION', 'steps');
    expectRefused(mh, evaluate(null), 'E_OPTION', 'evaluate');
    for (const wrong of [-1, 0.5, 2 ** 21, NaN, '1', undefined]) {
      expectRefused(mh, () => experiment.heldOut(wrong as number, 1), 'E_OPTION', 'first');
      expectRefused(mh, () => experiment.heldOut(0, wrong as number), 'E_OPTION', 'count');
    }
    expect(experiment.heldOut(5, 0)).toEqual({ tokens: new Int32Array(), targets: new Int32Array() });
  });
});
