// The loop of multihead/training: progress, pausing, single steps, restoring, aborting, and the sources of batches.

import { load, type Multihead, type TrainingStep } from 'multihead';
import { createExperiment } from 'multihead/lab';
import { createPool } from 'multihead/pool';
import { train, type TrainingBatch, type TrainingBatches, type TrainOptions } from 'multihead/training';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { errorOf } from './builds.ts';
import { random } from './random.ts';

const batchOf = (step: number): TrainingBatch => {
  const r = random(step);
  const tokens = Int32Array.from({ length: 12 }, () => r.int(0, 4));
  return { tokens, targets: tokens, batch: 2 };
};

let mh: Multihead;
const made: { dispose(): void }[] = [];
beforeEach(async () => {
  mh = await load({ simd: 'simd128' });
});
afterEach(() => {
  for (const each of made.splice(0)) each.dispose();
  expect(mh.memory().bytes).toBe(0);
});

function trainerOf() {
  const model = mh.transformer({ numLayers: 1, vocabSize: 5, embedDim: 8, numHeads: 2 });
  model.initialize({ seed: 1 });
  const trainer = mh.trainer(model, { learningRate: 0.01 });
  made.push(model, trainer);
  return trainer;
}

async function all(progress: AsyncIterable<TrainingStep>): Promise<number[]> {
  const steps = [];
  for await (const { step } of progress) steps.push(step);
  return steps;
}

const turn = () => new Promise((resolve) => setTimeout(resolve, 5));

describe('train()', () => {
  it('makes the steps that a plain loop makes', async () => {
    const [trainer, plain] = [trainerOf(), trainerOf()];
    const losses: number[] = [];
    for await (const { loss } of train({ trainer, batches: batchOf, steps: 5 })) losses.push(loss);
    const expected = Array.from({ length: 5 }, (_, step) => {
      const { tokens, targets } = batchOf(step);
      return plain.step(tokens, targets, { batch: 2 }).loss;
    });
    expect(losses).toEqual(expected);
  });

  it('gives the progress of some steps, and of the last', async () => {
    const trainer = trainerOf();
    expect(await all(train({ trainer, batches: batchOf, steps: 7, every: 3 }))).toEqual([3, 6, 7]);
    expect(await all(train({ trainer, batches: batchOf, steps: 7 }))).toEqual([]);
    expect(await all(train({ trainer, batches: batchOf, steps: 9, every: 5 }))).toEqual([9]);
    expect(await all(train({ trainer, batches: [10, 11].map(batchOf), every: 5 }))).toEqual([11]);
  });

  it('takes batches from iterables and asynchronous ones, and closes them', async () => {
    const trainer = trainerOf();
    let closed = 0;
    function* endless() {
      try {
        for (let step = 0; ; step += 1) yield batchOf(step);
      } finally {
        closed += 1;
      }
    }
    async function* slow() {
      try {
        for (let step = 0; step < 3; step += 1) {
          await turn();
          yield batchOf(step);
        }
      } finally {
        closed += 1;
      }
    }
    expect(await all(train({ trainer, batches: endless(), steps: 2 }))).toEqual([1, 2]);
    expect(await all(train({ trainer, batches: slow() }))).toEqual([3, 4, 5]);
    for await (const { step } of train({ trainer, batches: endless() })) if (step === 7) break;
    expect(closed).toBe(3);
    const until = (step: number) => Promise.resolve(step < 9 ? batchOf(step) : undefined);
    expect(await all(train({ trainer, batches: until }))).toEqual([8, 9]);
  });

  it('lets other tasks run between steps', async () => {
    const trainer = trainerOf();
    let turns = 0;
    const timer = setInterval(() => (turns += 1), 0);
    await all(train({ trainer, batches: batchOf, steps: 300, every: 300 }));
    clearInterval(timer);
    expect(turns).toBeGreaterThan(2);
  });

  it('waits for a message between steps where there is no setImmediate()', async () => {
    // Replaces setImmediate: Node may handle a thousand messages before anything else, a browser handles one.
    const { setImmediate } = globalThis;
    const sent: number[] = [];
    class OneMessageAtATime {
      readonly port1 = { onmessage: (): void => {}, close: () => sent.push(-1) };
      readonly port2 = {
        postMessage: () => {
          sent.push(trainer.steps());
          setImmediate(() => this.port1.onmessage());
        },
      };
    }
    const trainer = trainerOf();
    vi.stubGlobal('setImmediate', undefined);
    vi.stubGlobal('MessageChannel', OneMessageAtATime);
    await all(train({ trainer, batches: batchOf, steps: 4 }));
    vi.unstubAllGlobals();
    expect(sent).toEqual([1, 2, 3, 4, -1]);
  });

  it('leaves no message port open that would keep a process alive', async () => {
    const opened: MessageChannel[] = [];
    const closed: MessagePort[] = [];
    class Watched extends MessageChannel {
      constructor() {
        super();
        opened.push(this);
        const { port1 } = this;
        const close = port1.close.bind(port1);
        port1.close = () => (closed.push(port1), close());
      }
    }
    vi.stubGlobal('setImmediate', undefined);
    vi.stubGlobal('MessageChannel', Watched);
    await all(train({ trainer: trainerOf(), batches: batchOf, steps: 4 }));
    vi.unstubAllGlobals();
    expect(closed).toEqual(opened.map(({ port1 }) => port1));
    expect(opened).toHaveLength(1);
  });

  it('pauses, makes single steps, and goes on', async () => {
    const trainer = trainerOf();
    const training = train({ trainer, batches: batchOf, every: 100, steps: 8 });
    expect(training.paused).toBe(false);
    training.pause();
    const done = all(training);
    await turn();
    expect([trainer.steps(), training.paused]).toEqual([0, true]);
    training.step();
    training.step();
    await turn();
    expect([trainer.steps(), training.paused]).toEqual([2, true]);
    training.resume();
    expect(await done).toEqual([1, 2, 8]);
    expect(training.paused).toBe(false);
  });

  it('can be left and stopped while it is paused, and while it waits for a batch; another loop goes on', async () => {
    const trainer = trainerOf();
    const training = train({ trainer, batches: batchOf, steps: 6 });
    const loop = training[Symbol.asyncIterator]();
    expect(await loop.next()).toMatchObject({ value: { step: 1 } });
    training.pause();
    const waiting = loop.next();
    await turn();
    expect(await loop.return?.()).toEqual({ done: true, value: undefined });
    expect(await waiting).toEqual({ done: true, value: undefined });
    expect(trainer.steps()).toBe(1);

    const paused = all(training);
    await turn();
    const second = training[Symbol.asyncIterator]();
    expect(await second.return?.()).toEqual({ done: true, value: undefined }); // it never ran, so the first goes on
    training.step();
    await turn();
    training.stop();
    expect(await paused).toEqual([2]);

    let asked = 0;
    const never = train({ trainer, batches: () => ((asked += 1), new Promise<never>(() => {})) });
    const left = never[Symbol.asyncIterator]();
    const unanswered = left.next();
    await turn();
    expect(await left.return?.()).toEqual({ done: true, value: undefined });
    expect(await unanswered).toEqual({ done: true, value: undefined });
    expect(asked).toBe(1);

    training.resume();
    training.stop(); // no loop runs
    expect(await all(training)).toEqual([3, 4, 5, 6]);
  });

  it('leaves the signal nothing to call when it is left while paused', async () => {
    const { signal } = new AbortController();
    const [added, removed] = [vi.spyOn(signal, 'addEventListener'), vi.spyOn(signal, 'removeEventListener')];
    const training = train({ trainer: trainerOf(), batches: batchOf, signal });
    training.pause();
    const done = all(training);
    await turn();
    training.stop();
    expect(await done).toEqual([]);
    expect(added.mock.calls.length).toBeGreaterThan(0);
    expect(removed.mock.calls.length).toBe(added.mock.calls.length);
  });

  it('a checkpoint that is restored while it is paused repeats the same steps', async () => {
    const trainer = trainerOf();
    const seen: [number, number][] = [];
    let snapshot: Uint8Array | undefined;
    const training = train({ trainer, batches: async (step) => (await turn(), batchOf(step)), steps: 6 });
    for await (const { step, loss } of training) {
      seen.push([step, loss]);
      if (step === 2 && snapshot === undefined) snapshot = trainer.checkpoint();
      if (step === 5 && seen.length === 5) {
        training.pause();
        setTimeout(() => {
          trainer.restore(snapshot as Uint8Array);
          training.resume();
        }, 10);
      }
    }
    expect(seen.map(([step]) => step)).toEqual([1, 2, 3, 4, 5, 3, 4, 5, 6]);
    expect(seen.slice(5, 8)).toEqual(seen.slice(2, 5));
  });

  it('a checkpoint that is restored while a batch is awaited gets the batch of its step', async () => {
    const trainer = trainerOf();
    const file = trainer.checkpoint();
    const asked: number[] = [];
    let restored = false;
    const batches = async (step: number) => {
      asked.push(step);
      await turn();
      if (step === 2 && !restored) {
        trainer.restore(file);
        restored = true;
      }
      return batchOf(step);
    };
    expect(await all(train({ trainer, batches, steps: 3 }))).toEqual([1, 2, 1, 2, 3]);
    expect(asked).toEqual([0, 1, 2, 0, 1, 2]);
  });

  it('ends with E_ABORTED when it is aborted, running or paused, and the trainer can go on', async () => {
    const trainer = trainerOf();
    const abort = new AbortController();
    const seen: number[] = [];
    const running = (async () => {
      for await (const { step } of train({ trainer, batches: batchOf, signal: abort.signal })) {
        seen.push(step);
        if (step === 3) abort.abort(new Error('enough'));
      }
    })();
    await expect(running).rejects.toMatchObject({ code: 'E_ABORTED', got: 'enough', message: /train\(\)/ });
    expect(seen).toEqual([1, 2, 3]);
    expect(trainer.steps()).toBe(3);

    const other = new AbortController();
    const paused = train({ trainer, batches: batchOf, signal: other.signal });
    paused.pause();
    const waiting = all(paused);
    setTimeout(() => other.abort(), 5);
    await expect(waiting).rejects.toMatchObject({ code: 'E_ABORTED' });
    const before = all(train({ trainer, batches: batchOf, signal: other.signal }));
    await expect(before).rejects.toMatchObject({ code: 'E_ABORTED' });
    expect(await all(train({ trainer, batches: batchOf, steps: 4 }))).toEqual([4]);
  });

  it('ends with E_ABORTED while it waits for a batch that never comes', async () => {
    const trainer = trainerOf();
    const never = new Promise<TrainingBatch>(() => {});
    async function* stream(): AsyncGenerator<TrainingBatch> {
      yield await never;
    }
    for (const batches of [() => never, stream()]) {
      const signal = AbortSignal.timeout(5);
      await expect(all(train({ trainer, batches, signal }))).rejects.toMatchObject({ code: 'E_ABORTED' });
    }
    expect(await all(train({ trainer, batches: batchOf, steps: 1 }))).toEqual([1]);
  });

  it('makes the steps of trainers and experiments of a pool', async () => {
    using pool = await createPool({ workers: 2, simd: 'simd128' });
    const model = await pool.transformer({ numLayers: 1, vocabSize: 5, embedDim: 8, numHeads: 2 }, { workers: 'all' });
    await model.initialize({ seed: 1 });
    const [trainer, local] = [await pool.trainer(model, { learningRate: 0.01 }), trainerOf()];
    const losses = async (options: TrainOptions) => {
      const seen = [];
      for await (const { step, loss } of train(options)) seen.push([step, loss]);
      return seen;
    };
    for (const steps of [5, 8]) {
      const same = { batches: batchOf, steps, every: 2 };
      expect(await losses({ trainer, ...same })).toEqual(await losses({ trainer: local, ...same }));
    }
    const options = { kind: 'induction', batch: 2, steps: 3 } as const;
    const experiments = [await pool.experiment(options), createExperiment(mh, options)] as const;
    made.push(experiments[1]);
    expect(await losses({ experiment: experiments[0] })).toEqual(await losses({ experiment: experiments[1] }));

    // The loop can be paused and resumed while a worker makes a step.
    const training = train({ trainer, batches: batchOf, steps: 12 });
    training.step();
    const ended = all(training);
    await vi.waitUntil(async () => (await trainer.steps()) === 9);
    await turn();
    expect([training.paused, await trainer.steps()]).toEqual([true, 9]);
    training.step();
    training.resume();
    expect(await ended).toEqual([9, 10, 11, 12]);
    await expect(all(train({ trainer, batches: batchOf, signal: AbortSignal.abort() }))).rejects.toMatchObject({ code: 'E_ABORTED' });
    trainer.dispose();
    await expect(all(train({ trainer, batches: batchOf }))).rejects.toMatchObject({ code: 'E_DISPOSED' });
  });

  it('throws the errors of steps and batches', async () => {
    const trainer = trainerOf();
    const thrown = (batches: unknown) => all(train({ trainer, batches: batches as TrainingBatches }));
    await expect(thrown([batchOf(0), { tokens: [1], targets: [1] }])).rejects.toMatchObject({
      code: 'E_OPTION',
      argument: 'tokens',
    });
    await expect(thrown([7])).rejects.toMatchObject({ code: 'E_OPTION', argument: 'batches' });
    const fails = () => Promise.reject(new RangeError('no more'));
    await expect(thrown(fails)).rejects.toThrow(RangeError);
    expect(trainer.steps()).toBe(1);
    trainer.dispose();
    await expect(thrown([batchOf(0)])).rejects.toMatchObject({ code: 'E_DISPOSED' });
  });

  it('goes on in another loop, but not in two at once', async () => {
    const trainer = trainerOf();
    const training = train({ trainer, batches: batchOf, steps: 4 });
    for await (const { step } of training) {
      if (step === 2) break;
      await expect(all(training)).rejects.toMatchObject({ code: 'E_OPTION', argument: 'training' });
    }
    expect(await all(training)).toEqual([3, 4]);
  });

  it.each<[string, object, string]>([
    ['no trainer', { trainer: undefined }, 'trainer'],
    ['something else', { trainer: {} }, 'trainer'],
    ['no batches', { batches: undefined }, 'batches'],
    ['a text', { batches: 'abc' }, 'batches'],
    ['an object', { batches: {} }, 'batches'],
    ['half a step', { steps: 0.5 }, 'steps'],
    ['every 0th step', { every: 0 }, 'every'],
    ['no signal', { signal: 1 }, 'signal'],
    ['an unknown option', { epochs: 1 }, 'epochs'],
  ])('refuses %s', (_, wrong, argument) => {
    const options = { trainer: trainerOf(), batches: batchOf, ...wrong };
    expect(errorOf(() => train(options as TrainOptions))).toMatchObject({ code: 'E_OPTION', argument });
  });

  it.each([undefined, null, 3, []])('refuses options %#', (options) => {
    expect(errorOf(() => train(options as never))).toMatchObject({ code: 'E_OPTION', argument: 'train' });
  });
});
