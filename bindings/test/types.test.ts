// The package's types, used by a strict project: what they allow, and with `@ts-expect-error` what they refuse.

import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, it } from 'vitest';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const tsc = join(root, '..', 'node_modules', '.bin', 'tsc');

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'multihead-types-'));
  await mkdir(join(folder, 'node_modules'));
  await symlink(root, join(folder, 'node_modules', 'multihead'), 'junction');
  await writeFile(join(folder, 'package.json'), '{ "private": true, "type": "module" }');
});
afterAll(() => rm(folder, { recursive: true }));

const program = `
  import { load, MultiheadError, type AttentionBackwardOptions, type FloatDType, type Tensor, type TraceStep } from 'multihead';
  import type { Evaluation, Experiment, ModuleGradients, PlainTensor, Trainer, TrainingStep } from 'multihead';
  import { createExperiment, headStatistics } from 'multihead/lab';
  import { train, type Training } from 'multihead/training';
  import { readSafetensors, writeSafetensors } from 'multihead';
  import { createPool, type Pool, type PoolTransformer } from 'multihead/pool';
  const mh = await load();
  const x = mh.tensor(new Float32Array(4), [1, 1, 2, 2]);
  const { out, lse } = mh.attention(x, x, x, { return: ['lse'], causal: 'topLeft' });
  const both: [Tensor, Tensor] = [out, lse];
  const pool: Pool = await createPool({ workers: 2, worker: () => new Worker('/pool_worker.js'), abortGrace: Infinity });
  const inPool = await pool.attention(x, x, x, { return: ['lse'], outDtype: 'f16', signal: AbortSignal.timeout(1000) });
  const arrays: [Uint16Array, Float32Array] = [inPool.out.data, inPool.lse.data];
  const shared: PoolTransformer = await pool.transformer({ embedDim: 8, numHeads: 2, numLayers: 1, vocabSize: 9 }, { workers: 2 });
  // @ts-expect-error results of a pool need no dispose()
  inPool[Symbol.dispose];
  const logits: Float32Array = (await shared.forward(Int32Array.of(1))).logits.data;
  // @ts-expect-error weights were not requested
  inPool.weights;
  // @ts-expect-error weights were not requested
  mh.attention(x, x, x, { return: ['lse'] }).weights;
  mh.attention(x, x, x, { causal: true });
  // @ts-expect-error not an alignment
  mh.attention(x, x, x, { causal: 'true' });
  const fromNumbers: [Tensor, Tensor<'bf16'>] = [mh.tensor([1, 2]), mh.tensor([[1], [2]], undefined, { dtype: 'bf16' })];
  // @ts-expect-error text is no number
  mh.tensor(['1', '2'], [2]);
  // @ts-expect-error only mh.tensor() takes number[]
  mh.attention({ shape: [1, 1, 1, 1], data: [1] }, ...[x, x] as const);
  using whole = mh.attention(x, x, x, { return: ['lse'] });
  using gradientsOfIt = mh.attentionBackward({ q: x, k: x, v: x, ...whole, dOut: x });
  using scope = mh.scope();
  const keptOne: Tensor = scope.keep(gradientsOfIt.dQ);
  const bool: Uint8Array = mh.tensor(new Uint8Array(2), [2]).data;
  const inputs = { q: x, k: x, v: x, out, lse, dOut: x };
  const { dQ, dBias } = mh.attentionBackward(inputs, { causal: 'topLeft', bias: x });
  const some: [Tensor, Tensor | undefined] = [dQ, dBias];
  // @ts-expect-error perhaps there is no bias
  dBias.shape;
  const named = mh.attentionBackward(inputs, { sinks: new Float32Array(1), return: ['dV', 'dSinks'] });
  const pair: [Tensor, Float32Array] = [named.dV, named.dSinks];
  // @ts-expect-error dQ was not requested
  named.dQ;
  const wide: AttentionBackwardOptions = { return: ['dK'] };
  // @ts-expect-error the type of the options does not state the names
  mh.attentionBackward(inputs, wide).dK.shape;
  // @ts-expect-error gradients are f32
  mh.attentionBackward(inputs, { outDtype: 'f16' });
  // @ts-expect-error lse is missing
  mh.attentionBackward({ q: x, k: x, v: x, out, dOut: x });
  // @ts-expect-error not a gradient
  mh.attentionBackward(inputs, { return: ['dMask'] });
  mh.attentionBackward({ q: x, k: x, v: x, ...mh.attention(x, x, x, { return: ['lse', 'weights'] }), dOut: x });
  mh.attentionBackward(inputs, { out: { dQ: x }, return: [] });
  console.log(some, pair, fromNumbers, keptOne);
  using op = mh.prepare({ q: x.shape, causal: 'topLeft', return: ['lse'] });
  op.run(x, x, x, out, lse);
  // @ts-expect-error a run takes only tensors
  op.run({ data: new Float32Array(4), shape: [1, 1, 2, 2] }, x, x, out);
  using module = mh.multiHeadAttention({ embedDim: 2, numHeads: 1, bias: false });
  module.loadStateDict({ in_proj_weight: { shape: [6, 2], data: new Uint16Array(12), dtype: 'bf16' } });
  using past = module.createCache({ capacity: 8, dtype: 'int8' });
  const { trace, meanWeights } = module.forward(x, { trace: ['weights', 'xKey'], return: ['meanWeights'] });
  const step: TraceStep = trace.weights;
  const mean: Tensor = meanWeights;
  const perhaps: TraceStep | undefined = trace.xKey;
  // @ts-expect-error scores were not requested
  trace.scores;
  // @ts-expect-error the weights of each head were not requested
  module.step({ shape: [1, 1, 2], data: new Float32Array(2) }, past).weights;
  // @ts-expect-error a step is always causal
  module.step(x, past, { causal: 'topLeft' });
  module.forward({ query: x, key: x }, { heads: { temperature: 2 } }).output.dispose();
  const statistics = headStatistics(mh, mean, { tokens: new Int32Array(2) });
  const numbers: Float32Array | undefined = statistics.induction;
  const every = mh.attention(x, x, x, {
    ...{ causal: 'topLeft', window: { left: 3 }, alibi: true, outDtype: 'f16' },
    ...{ return: ['dropoutMask'], dropout: { probability: 0.1, seed: 1n } },
    capture: [{ stage: 'raw', heads: [0], rows: [0, 1] }, { stage: 'weights' }],
  });
  const half: Tensor<'f16'> = every.out;
  const kept: Tensor<'bool'> = every.dropoutMask;
  const captured: readonly [Tensor, Tensor] = every.captures;
  // @ts-expect-error two captures were requested
  every.captures[2];
  // @ts-expect-error no captures were requested
  mh.attention(x, x, x).captures;
  // @ts-expect-error 16 bits without a dtype: f16 or bf16
  mh.attention({ shape: [1, 1, 1, 1], data: new Uint16Array(1) }, x, x);
  // @ts-expect-error a Uint16Array is not f32
  mh.tensor(new Uint16Array(1), [1], { dtype: 'f32' });
  const bits: Uint16Array = mh.tensor(new Float32Array(1), [1], { dtype: 'bf16' }).data;
  const float: FloatDType = 'f16' as FloatDType;
  const any: Tensor<FloatDType> = mh.attention(x, x, x, { outDtype: float }).out;
  mh.attention(any, any, any);
  for (const { data } of mh.scores(x, x, { stage: 'masked', head: 0 })) data.fill(0);
  const cu = new Int32Array([0, 2]);
  const packed = mh.attentionVarlen(x, x, x, { cuQ: cu, cuK: cu, return: ['lse'] });
  // @ts-expect-error packed sequences have no masks
  mh.attentionVarlen(x, x, x, { cuQ: cu, cuK: cu, mask: x });
  const merged: { out: Tensor; lse: Tensor } = mh.mergeAttention(packed, packed);
  using cache = mh.createCache({ numKvHeads: 1, headDim: 2, capacity: 4, dtype: 'int8' });
  cache.append(x, x, new Int32Array([1]));
  const decoded: Tensor = cache.attend(x, { causal: 'bottomRight', return: ['lse'] }).lse;
  // @ts-expect-error queries are the newest tokens
  cache.attend(x, { causal: 'topLeft' });
  const file: Uint8Array<ArrayBuffer> = writeSafetensors({ x, half: { shape: [2], data: bits, dtype: 'bf16' } });
  const { tensors, stateDict, metadata } = readSafetensors(file);
  const again = writeSafetensors({ ...tensors, ...stateDict }, { metadata, dtype: 'f16' });
  const ids = tensors['position_ids'];
  if (ids?.dtype === 'i64') console.log(ids.data satisfies BigInt64Array);
  if (ids?.dtype === 'f8_e4m3' || ids?.dtype === 'f4') console.log(ids.data satisfies Uint8Array);
  const parameter: Float32Array | Uint16Array | undefined = stateDict['weight']?.data;
  module.loadStateDict(stateDict);
  // @ts-expect-error a BigInt64Array is not an Int32Array
  writeSafetensors({ x: { dtype: 'i64', shape: [1], data: new Int32Array(1) } });
  // @ts-expect-error parameters are floats
  stateDict['weight']?.dtype === 'i64';
  op.setKvLengths(cu);
  const cross: ModuleGradients = module.backward({ query: x, key: x }, x, { causal: 'topLeft' });
  const ofInputs: [Tensor, Tensor | undefined, PlainTensor | undefined] = [cross.dQuery, cross.dKey, cross.parameters['sinks']];
  // @ts-expect-error backward() has no traces
  module.backward(x, x, { trace: true });
  using model = mh.transformer({ numLayers: 1, vocabSize: 5, embedDim: 4, numHeads: 2, numReadouts: 2, outDropout: 0.1 });
  model.initialize({ seed: 1n, residual: 0.5, names: 'gpt2' });
  using trainer: Trainer = mh.trainer(model, { optimizer: 'adamW', decay: 'cosine', decaySteps: 9, clipNorm: 1 });
  const { loss, counted }: TrainingStep = trainer.step(cu, cu, { batch: 2, alibi: true });
  // @ts-expect-error not an Int32Array
  trainer.step([0, 1], [1, 2]);
  // @ts-expect-error the trainer decides it
  trainer.step(cu, cu, { training: true });
  // @ts-expect-error not an optimizer
  mh.trainer(model, { optimizer: 'adam' });
  // @ts-expect-error not a model
  mh.trainer(module);
  trainer.restore(trainer.checkpoint());
  const training: Training = train({ trainer, batches: async (step) => ({ tokens: cu, targets: cu, batch: step }), every: 5 });
  for await (const progress of training) console.log(progress.gradientNorm satisfies number);
  using experiment: Experiment = createExperiment(mh, { kind: 'induction', positions: 'alibi', numHeads: 2, seed: 3n });
  const { attention, headOfPattern }: Evaluation = experiment.evaluate({ ablation: true, headScales: new Float32Array(4) });
  const { tokens: drawn } = experiment.heldOut(0, 2);
  const seen = experiment.model.forward(drawn, { ...experiment.attentionOptions, batch: 2, trace: ['weights'] });
  console.log(attention satisfies Float64Array, headOfPattern[0], seen.traces[0]?.weights.shape, experiment.options.steps + 1);
  for await (const { step } of train({ experiment, every: 5 })) console.log(step);
  // @ts-expect-error an experiment has its own batches
  train({ experiment, batches: [] });
  // @ts-expect-error not an experiment's kind
  createExperiment(mh, { kind: 'copying' });
  // @ts-expect-error batches have targets
  train({ trainer, batches: [{ tokens: cu }] });
  console.log(ofInputs, loss, counted);
  console.log(parameter);
  // @ts-expect-error not a dtype of floats
  writeSafetensors({ x }, { dtype: 'i32' });
  console.log(again);
  console.log(half, kept, captured, bits, merged, decoded);
  const later: Promise<Tensor> = mh.scope(async () => mh.tensor([1]));
  console.log(both, bool, step, later, MultiheadError);
`;

it('are accepted by a strict project, library files included', async () => {
  await writeFile(join(folder, 'types.ts'), program);
  const checks = ['--strict', '--exactOptionalPropertyTypes', '--noUncheckedIndexedAccess', '--skipLibCheck', 'false'];
  const strict = [...checks, '--noEmit', '--target', 'es2022', '--module', 'nodenext', '--types', '', '--lib', 'es2022,dom'];
  await promisify(execFile)(tsc, [...strict, 'types.ts'], { cwd: folder, env: { ...process.env, NO_COLOR: '1' } }).catch(
    (error: { stdout: string }) => expect.fail(error.stdout),
  );
});
