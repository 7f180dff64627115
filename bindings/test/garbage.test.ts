// Tensors that are left to the garbage collector. The tests run in separate processes: in a worker of Vitest, Node 20
// sometimes stops running the finalizers of every FinalizationRegistry until the process ends.

import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';

const cwd = fileURLToPath(new URL('..', import.meta.url));

/** Runs a script that can use mh, collect() and warnings; returns its output as JSON. */
async function inNode(script: string): Promise<unknown> {
  const prelude = `
    import { load } from 'multihead';
    import { createExperiment } from 'multihead/lab';
    const warnings = [];
    console.warn = (message) => warnings.push(message);
    const mh = await load({ simd: 'simd128' });
    const collect = async (done) => {
      for (let round = 0; round < 500 && !done(round); round += 1) {
        globalThis.gc();
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
    };`;
  const args = ['--expose-gc', '--input-type=module', '-e', prelude + script];
  const { stdout } = await promisify(execFile)(process.execPath, args, { cwd });
  return JSON.parse(stdout);
}

/** Returns memory() after a script made its objects, and again after they were collected. */
const afterForgetting = (script: string): Promise<unknown> =>
  inNode(`
    (() => {${script}})();
    const before = mh.memory().live;
    await collect(() => mh.memory().live === 0);
    const { live, bytes } = mh.memory();
    console.log(JSON.stringify({ before, live, bytes, warnings }));`);

describe('a tensor that is not disposed', () => {
  it('is freed by the garbage collector, with one warning', async () => {
    const result = await inNode(`
      const kept = mh.zeros([2]);
      (() => {
        for (let i = 0; i < 3; i += 1) mh.zeros([5, 7]);
        mh.zeros([9]).dispose();
      })();
      await collect(() => mh.memory().live === 1);
      const { live, bytes } = mh.memory();
      console.log(JSON.stringify({ live, bytes, disposed: kept.disposed, warnings }));`);
    expect(result).toEqual({
      live: 1,
      bytes: 8,
      disposed: false,
      warnings: [expect.stringMatching(/shape \(5, 7\).*dispose\(\)/)],
    });
  });

  it('is not freed while a view of it is reachable', async () => {
    const result = await inNode(`
      const view = (() => mh.tensor(new Float32Array(3).fill(4), [3]).data)();
      await collect((round) => round === 20);
      console.log(JSON.stringify({ live: mh.memory().live, view: [...view], warnings }));`);
    expect(result).toEqual({ live: 1, view: [4, 4, 4], warnings: [] });
  });
});

describe('a module and its cache that are not disposed', () => {
  it('are freed by the garbage collector, with one warning', async () => {
    const result = await afterForgetting(`
      const module = mh.multiHeadAttention({ embedDim: 2, numHeads: 1, bias: false });
      const square = { shape: [2, 2], data: new Float32Array(4) };
      const inProj = { shape: [6, 2], data: new Float32Array(12) };
      module.loadStateDict({ in_proj_weight: inProj, 'out_proj.weight': square });
      module.createCache({ capacity: 4 });`);
    expect(result).toEqual({
      before: 2,
      live: 0,
      bytes: 0,
      warnings: [expect.stringMatching(/module.* of \d+ bytes.*dispose\(\)/)],
    });
  });
});

describe('a model and its trainer that are not disposed', () => {
  it('are freed by the garbage collector, with one warning', async () => {
    const result = await afterForgetting(`
      const model = mh.transformer({ numLayers: 1, vocabSize: 3, embedDim: 2, numHeads: 1 });
      model.initialize();
      mh.trainer(model).step(Int32Array.of(0, 1), Int32Array.of(1, 2));`);
    expect(result).toEqual({
      before: 2,
      live: 0,
      bytes: 0,
      warnings: [expect.stringMatching(/a (model|trainer) of \d+ bytes was .*dispose\(\)/)],
    });
  });
});

describe('a cache that is not disposed, and rows of scores that are not read to the end', () => {
  it('are freed by the garbage collector, with one warning', async () => {
    const result = await afterForgetting(`
      const x = { shape: [1, 1, 9, 4], data: new Float32Array(36) };
      mh.createCache({ numKvHeads: 1, headDim: 4, capacity: 8, layout: 'paged' }).append(
        { shape: [1, 1, 2, 4], data: new Float32Array(8) },
        { shape: [1, 1, 2, 4], data: new Float32Array(8) },
      );
      mh.scores(x, x, { stage: 'raw', chunk: 2 }).next();`);
    expect(result).toEqual({
      before: 3,
      live: 0,
      bytes: 0,
      warnings: [expect.stringMatching(/a (cache|tensor) of .*dispose\(\)/)],
    });
  });
});

describe('an experiment that is not disposed', () => {
  it('is freed by the garbage collector with its model, with one warning', async () => {
    const result = await afterForgetting(`
      const experiment = createExperiment(mh, { batch: 1 });
      experiment.step();
      experiment.model.stateDict();`);
    expect(result).toEqual({
      before: 2,
      live: 0,
      bytes: 0,
      warnings: [expect.stringMatching(/(an experiment|a model) of .*dispose\(\)/)],
    });
  });

  it('lives as long as its model', async () => {
    const result = await inNode(`
      const model = (() => createExperiment(mh, { batch: 1 }).model)();
      const before = model.stateDict()['embedding.weight'].data;
      await collect((round) => round === 20);
      const after = model.stateDict()['embedding.weight'].data;
      console.log(JSON.stringify({ live: mh.memory().live, same: String(before) === String(after), warnings }));`);
    expect(result).toEqual({ live: 2, same: true, warnings: [] });
  });
});

describe('a prepared operation that is not disposed', () => {
  it('is freed by the garbage collector, with one warning', async () => {
    const result = await afterForgetting(`
      const bias = { shape: [1, 9], data: new Float32Array(9) };
      mh.prepare({ q: [1, 1, 9, 4], bias });
      mh.prepareBackward({ q: [1, 1, 9, 4], bias, return: ['dSinks'], sinks: new Float32Array(1) });`);
    expect(result).toEqual({
      before: 2,
      live: 0,
      bytes: 0,
      warnings: [expect.stringMatching(/a prepared operation was .*dispose\(\)/)],
    });
  });
});

describe('a generation that is left', () => {
  /** Leaves generations in three batches. Returns true if the memory grows by what the last two of them leave. */
  const grows = (count: number, leave: string): Promise<unknown> =>
    inNode(`
      import { openModel } from 'multihead/models';
      const folder = new URL('../tests/conformance/models/llama3', 'file://' + process.cwd() + '/');
      const prompt = new Int32Array(60).fill(1);
      const model = await openModel(folder);
      const referenced = [];
      const leave = async () => {${leave}};
      const memory = [];
      for (let batch = 0; batch < 3; batch += 1) {
        for (let i = 0; i < ${count}; i += 1) await leave();
        await collect((round) => round === 5);
        memory.push(process.memoryUsage().external);
      }
      console.log(JSON.stringify(memory[2] - memory[0] > 4 * 2 ** 20));`);

  it('is freed by the garbage collector', async () => {
    expect(await grows(800, 'await model.generate(prompt).next();')).toBe(false);
  });

  it('is freed with its model', async () => {
    const leave = `
      const other = await openModel(folder);
      const steps = other.generate(prompt);
      referenced.push(steps);
      await steps.next();
      other.dispose();`;
    expect(await grows(100, leave)).toBe(false);
  });
});

describe('mh.dispose()', () => {
  it('lets the engine free the memory, although mh and its objects are still reachable', async () => {
    const result = await inNode(`
      const tensor = mh.zeros([2]);
      const cache = mh.createCache({ numKvHeads: 1, headDim: 4, capacity: 8 });
      const x = { shape: [1, 1, 1, 4], data: new Float32Array(4) };
      mh.attention(x, x, x).out.dispose();
      let freed = false;
      const registry = new FinalizationRegistry(() => (freed = true));
      (() => {
        const other = mh.zeros([1]);
        registry.register(other.data.buffer);
        other.dispose();
      })();
      mh.dispose();
      await collect(() => freed);
      console.log(JSON.stringify({ freed, disposed: [mh.disposed, tensor.disposed, cache.disposed], warnings }));`);
    expect(result).toEqual({ freed: true, disposed: [true, true, true], warnings: [] });
  });
});
