// What console.log() and JSON.stringify() show of objects of the package.

import { fileURLToPath } from 'node:url';
import { inspect } from 'node:util';
import { createExperiment } from 'multihead/lab';
import { openModel } from 'multihead/models';
import { expect, it } from 'vitest';
import { loadBuild } from './builds.ts';

const mh = await loadBuild('simd128');

it('console.log() shows dtype, shape and first numbers of a tensor', () => {
  mh.scope(() => {
    expect(inspect(mh.tensor([1, 0.1, -3, 4e9], [2, 2]))).toBe('Tensor f32 (2, 2) [1, 0.1, -3, 4000000000]');
    expect(inspect({ out: mh.zeros([1, 8, 3]) })).toBe('{ out: Tensor f32 (1, 8, 3) [0, 0, 0, 0, 0, 0, …] }');
    expect(inspect(mh.tensor([1, 0.5, NaN], [3], { dtype: 'f16' }))).toBe('Tensor f16 (3) [1, 0.5, NaN]');
    expect(inspect(mh.tensor([1, 1 / 3], [2], { dtype: 'bf16' }))).toBe('Tensor bf16 (2) [1, 0.333984]');
    expect(inspect(mh.tensor(Uint8Array.of(1, 0), [2]))).toBe('Tensor bool (2) [1, 0]');
    expect(inspect(mh.zeros([0, 4]))).toBe('Tensor f32 (0, 4) []');
    const gone = mh.zeros([2]);
    gone.dispose();
    expect(inspect(gone)).toBe('Tensor f32 (2) disposed');
    expect(inspect(new Proxy(mh.zeros([2]), {}))).toMatch('proxy of a tensor');
  });
});

it('JSON.stringify() writes dtype and shape of a tensor', () => {
  const tensor = mh.tensor(new Float32Array(6), [2, 3]);
  expect(JSON.stringify({ tensor })).toBe('{"tensor":{"dtype":"f32","shape":[2,3]}}');
  tensor.dispose();
  expect(JSON.stringify(tensor)).toBe('{"dtype":"f32","shape":[2,3]}');
});

it('console.log() shows a short line for every other object', async () => {
  const model = mh.transformer({ numLayers: 1, vocabSize: 5, embedDim: 8, numHeads: 2 });
  model.initialize({ seed: 1 });
  const module = mh.multiHeadAttention({ embedDim: 4, numHeads: 2 });
  const objects: [{ dispose(): void }, string][] = [
    [mh.createCache({ numKvHeads: 1, headDim: 4, capacity: 4 }), 'a cache'],
    [module, 'a module'],
    [mh.transformerBlock({ embedDim: 4, numHeads: 2 }), 'a block'],
    [mh.trainer(model, {}), 'a trainer'],
    [model, 'a model'],
    [createExperiment(mh, { seed: 1 }), 'an experiment'],
  ];
  for (const [object, text] of objects) {
    expect(inspect(object)).toBe(text);
    expect(inspect({ object })).toBe(`{ object: ${text} }`);
    expect(Object.keys(object)).not.toContain('nodejs.util.inspect.custom');
  }
  using opened = await openModel(fileURLToPath(new URL('../../tests/conformance/models/bert', import.meta.url)));
  expect(inspect(opened)).toBe('a model');
  for (const [object] of objects) object.dispose();
  expect(objects.map(([object]) => inspect(object))).toEqual(objects.map(([, text]) => text));
});
