// Training of opened models, and saving them. Gradients of every family are compared with finite differences natively
// (tests/models/training_test.cc); here is what JavaScript adds: copies, names, files, memory and errors.

import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { type MultiheadError, readSafetensors, type StateDict, writeSafetensors } from 'multihead';
import { type Model, type ModelTrainerOptions, openModel, saveModel } from 'multihead/models';
import { train } from 'multihead/training';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Core, modelContents } from '../src/models/core/contents.ts';
import { saveModel as saveHere } from '../src/models/save.ts';
import { builds, errorOf, rejectionOf } from './builds.ts';
import { openFromSources } from './model_sources.ts';
import { folderWithTokenizer, goldens } from './tokenizer_files.ts';

const tokens = Int32Array.of(5, 9, 2, 5, 7, 1, 3, 8, 4, 2);
const targets = Int32Array.of(9, 2, 5, 7, -1, 3, 8, 4, 2, -1);
const batch = { batch: 2 };
const ids = [...tokens.subarray(0, 5)];

const logitsOf = async (model: Model) => (await model.logits(ids, { positions: 'all' })).data;

/** The tensors of a saved model. */
async function weightsOf(model: Model, dtype?: 'f16' | 'bf16'): Promise<StateDict> {
  const file = saveModel(model, { dtype }).find(({ name }) => name === 'model.safetensors');
  return readSafetensors(await (file as Blob).arrayBuffer()).stateDict;
}

const bits = (state: StateDict) =>
  Object.fromEntries(
    Object.entries(state).map(([name, { shape, data }]) => [name, [shape, Buffer.from((data as Float32Array).slice().buffer).toString('base64')]]),
  );

describe.each(builds)('%s', (simd) => {
  let model: Model;
  let text: string;
  beforeAll(async () => {
    const { vocab_size: vocabSize } = JSON.parse(readFileSync(join(goldens, 'llama3', 'config.json'), 'utf8')) as { vocab_size: number };
    text = folderWithTokenizer('llama3', vocabSize);
    model = await openModel(text, { simd });
  });
  afterAll(() => {
    model.dispose();
    rmSync(text, { recursive: true });
  });

  it.each(['gpt2', 'gemma2', 'phi3'])('%s: the loss falls, the opened model stays, and the trained one is saved', async (name) => {
    using opened = await openModel(join(goldens, name), { simd });
    const before = await logitsOf(opened);
    using trainer = await opened.trainer({ learningRate: 0.01 });
    using trained = trainer.model;
    expect(await logitsOf(trained)).toHaveLength(before.length);
    const losses = Array.from({ length: 12 }, () => trainer.step(tokens, targets, batch).loss);
    expect(losses.at(-1)).toBeLessThan(0.7 * (losses[0] as number));
    expect([trainer.steps(), trained.info.modelType]).toEqual([12, opened.info.modelType]);
    expect(await logitsOf(opened)).toEqual(before);
    const learnt = await logitsOf(trained);
    using again = await openModel(saveModel(trained), { simd });
    const reopened = await logitsOf(again);
    // Gains of Gemma are stored minus 1, which rounds.
    if (name === 'gemma2') reopened.forEach((value, at) => expect(value).toBeCloseTo(learnt[at] as number, 3));
    else expect(reopened).toEqual(learnt);
  });

  it('trains the chosen layers alone', async () => {
    const last = model.info.numLayers - 1;
    using trainer = await model.trainer({ layers: [last], learningRate: 0.01, clipNorm: 1 });
    using trained = trainer.model;
    trainer.accumulate(tokens, targets, batch);
    const gradients = trainer.gradients();
    expect(Object.keys(gradients).every((name) => name.includes(`layers.${last}.`))).toBe(true);
    expect(Object.values(gradients).some(({ data }) => (data as Float32Array).some((slope) => slope !== 0))).toBe(true);
    trainer.update();
    trainer.step(tokens, targets, batch);
    const [own, given] = [await weightsOf(trained), await weightsOf(model)];
    expect(Object.keys(own)).toEqual(Object.keys(given));
    const changed = Object.keys(given).filter((name) => bits(own)[name]?.[1] !== bits(given)[name]?.[1]);
    expect(new Set(changed)).toEqual(new Set(Object.keys(gradients)));
    const state = Object.keys(trainer.stateDict()).filter((name) => !/^(optimizer|trainer)\./.test(name));
    expect(new Set(state)).toEqual(new Set(Object.keys(gradients)));
  });

  it('continues from a state with the same bits', async () => {
    const options = { learningRate: 0.005, warmupSteps: 3, weightDecay: 0.1 } as const;
    using one = await model.trainer(options);
    using other = await model.trainer(options);
    for (let step = 0; step < 3; step += 1) one.step(tokens, targets, batch);
    other.loadStateDict(one.stateDict());
    one.step(tokens, targets, batch);
    other.step(tokens, targets, batch);
    expect(bits(other.stateDict())).toEqual(bits(one.stateDict()));
    const file = one.checkpoint();
    one.setLearningRate(0.1);
    expect(one.step(tokens, targets, batch).learningRate).toBeCloseTo(0.1, 6);
    one.restore(file);
    expect([one.steps(), bits(one.stateDict())]).toEqual([4, bits(other.stateDict())]);
    expect(await logitsOf(one.model)).toEqual(await logitsOf(other.model));
    for (const each of [one, other]) each.model.dispose();
  });

  it('takes texts, and the loop of multihead/training', async () => {
    using trainer = await model.trainer({ learningRate: 0.01, optimizer: 'sgd', momentum: 0.9 });
    using trained = trainer.model;
    const made = await trainer.batchOf(['the cat sat', [4, 5], Int32Array.of(7)]);
    expect(made).toEqual({ tokens: Int32Array.of(4, 5, 7, 4, 5, 0, 7, 0, 0), targets: Int32Array.of(5, 7, -1, 5, -1, -1, -1, -1, -1), batch: 3 });
    expect((await trainer.batchOf('the cat')).targets).toEqual(Int32Array.of(5, -1));
    const losses: number[] = [];
    for await (const { loss, counted } of train({ trainer, batches: () => made, steps: 8 })) {
      losses.push(loss);
      expect(counted).toBe(3);
    }
    expect(losses.at(-1)).toBeLessThan(losses[0] as number);
    expect((await trained.encode('the cat')).ids).toEqual([4, 5]);
    expect((await trained.complete('the cat', { maxNewTokens: 2 })).ids).toHaveLength(2);
    expect((await trained.lens(ids, { top: 1 })).layers).toHaveLength(model.info.numLayers + 1);
  });

  it('saves a folder with all that openModel() read', async () => {
    const files = saveModel(model, { dtype: 'bf16' });
    expect(files.map(({ name }) => name).sort()).toEqual(['config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer_config.json']);
    const config = JSON.parse(await (files.find(({ name }) => name === 'config.json') as Blob).text()) as Record<string, unknown>;
    const { torch_dtype: type, dtype, ...rest } = config;
    const { torch_dtype: _, dtype: __, ...given } = JSON.parse(readFileSync(join(text, 'config.json'), 'utf8')) as Record<string, unknown>;
    expect([dtype ?? type, rest]).toEqual(['bfloat16', given]);
    const written = '{"own": {"dtype": null, "factor": 8.0, "most": Infinity}, "_name": "a \\" {b",';
    const stated = [
      ...files.filter(({ name }) => name !== 'config.json'),
      new File([readFileSync(join(text, 'config.json'), 'utf8').replace('{', written)], 'config.json'),
    ];
    using other = await openModel(stated, { simd });
    const saved = await (saveModel(other, { dtype: 'f16' }).find(({ name }) => name === 'config.json') as Blob).text();
    expect(saved).toContain(written.replace('null', '"float16"'));
    const folder = mkdtempSync(join(tmpdir(), 'multihead-saved-'));
    for (const file of files) await writeFile(join(folder, file.name), file.stream());
    using again = await openModel(folder, { simd });
    expect((await again.encode('the cat')).ids).toEqual([4, 5]);
    rmSync(folder, { recursive: true });
    for (const dtype of ['f16', 'bf16'] as const) expect((await weightsOf(model, dtype))['model.norm.weight']).toMatchObject({ dtype });
    using whole = await openModel(saveModel(model), { simd });
    expect(bits(await weightsOf(whole))).toEqual(bits(await weightsOf(model)));
  });

  it.each(['bert', 'vit', 'gpt2', 'llama3', 'gemma2'])('%s: is saved as it is in memory', async (name) => {
    for (const [weights, embeddingWeights] of [['int8'], ['int4', 'int8'], ['f16'], ['int4']] as const) {
      using opened = await openModel(join(goldens, name), { simd, weights, embeddingWeights });
      const files = saveModel(opened, { dtype: 'asInMemory' });
      using again = await openModel(files, { simd });
      expect(again.info).toEqual(opened.info);
      // Gemma stores gains minus 1, and the subtraction rounds.
      if (name !== 'gemma2') expect(bits(await weightsOf(again))).toEqual(bits(await weightsOf(opened)));
      using f32 = await openModel(files, { simd, weights: 'f32' });
      if (name !== 'gemma2') expect(bits(await weightsOf(f32))).toEqual(bits(await weightsOf(opened)));
      const config = files.find((file) => file.name === 'config.json') as Blob;
      expect(await config.text()).toBe(readFileSync(join(goldens, name, 'config.json'), 'utf8'));
    }
    using opened = await openModel(join(goldens, name), { simd, weights: 'int4', embeddingWeights: 'int8' });
    const file = saveModel(opened, { dtype: 'asInMemory' }).find((each) => each.name === 'model.safetensors') as Blob;
    const { tensors } = readSafetensors(new Uint8Array(await file.arrayBuffer()));
    const embedding = Object.entries(tensors).find(([tensor]) => /embed_tokens|wte|word_embeddings/.test(tensor))?.[1];
    const { embedDim, vocabSize } = opened.info;
    if (name !== 'vit') expect(embedding).toMatchObject({ dtype: 'i8', shape: [vocabSize, 34 * Math.ceil(embedDim / 32)] });
    expect(file.size).toBeLessThan((await (saveModel(opened).find((each) => each.name === 'model.safetensors') as Blob)).size);
    expect((await rejectionOf(openModel(join(goldens, name), { embeddingWeights: 'int2' as never }))).argument).toBe('embeddingWeights');
  });

  it.each(['bert', 'vit', 'gpt2'])('%s: a saved model of any kind opens again', async (name) => {
    using opened = await openModel(join(goldens, name), { simd });
    using again = await openModel(saveModel(opened), { simd });
    expect({ ...again.info, weightBytes: 0 }).toEqual({ ...opened.info, weightBytes: 0 });
    expect(bits(await weightsOf(again))).toEqual(bits(await weightsOf(opened)));
  });

  it('saves a folder of sentence-transformers, which the trained model keeps', async () => {
    const read = (name: string) => new Uint8Array(readFileSync(join(goldens, 'mistral', name)));
    const { hidden_size: width } = JSON.parse(new TextDecoder().decode(read('config.json'))) as { hidden_size: number };
    const weight = { shape: [3, width], data: Float32Array.from({ length: 3 * width }, (_, at) => Math.sin(at)) };
    const modules = ['0_Transformer', '1_Pooling', '2_Dense'].map((path) => ({ path, type: `sentence_transformers.models.${path.slice(2)}` }));
    const dense = { in_features: width, out_features: 3, bias: false, activation_function: 'torch.nn.modules.activation.Tanh' };
    const json = (value: unknown, name: string) => new File([JSON.stringify(value)], name);
    const files = [
      ...[json(modules, 'modules.json'), json({ pooling_mode_mean_tokens: true }, '1_Pooling/config.json'), json(dense, '2_Dense/config.json')],
      new File([writeSafetensors({ 'linear.weight': weight })], '2_Dense/model.safetensors'),
      ...['config.json', 'model.safetensors'].map((name) => new File([read(name)], `0_Transformer/${name}`)),
    ];
    const opened = await openModel(files, { simd, weights: 'f32' });
    const vector = await opened.embed(ids);
    expect(
      saveModel(opened)
        .map(({ name }) => name)
        .sort(),
    ).toEqual(files.map(({ name }) => name).sort());
    using again = await openModel(saveModel(opened), { simd });
    expect(await again.embed(ids)).toEqual(vector);
    using trainer = await opened.trainer({ learningRate: 0.01 });
    using trained = trainer.model;
    opened.dispose();
    expect(await trained.embed(ids)).toEqual(vector);
    trainer.step(tokens, targets, batch);
    const learnt = await trained.embed(ids);
    expect(learnt).not.toEqual(vector);
    using reopened = await openModel(saveModel(trained), { simd });
    expect(await reopened.embed(ids)).toEqual(learnt);
  });

  it('refuses what it cannot train, and the next step works', async () => {
    const checked = (error: MultiheadError, code: string, argument: string, words = /./) => {
      expect([error.code, error.argument], error.message).toEqual([code, argument]);
      expect(error.message).toMatch(words);
    };
    const refused = (fn: () => unknown, ...expected: [code: string, argument: string, words?: RegExp]) => checked(errorOf(fn), ...expected);
    const untrained = async (of: Model, options: ModelTrainerOptions, argument: string, words?: RegExp) =>
      checked(await rejectionOf(of.trainer(options)), 'E_OPTION', argument, words);
    for (const layers of [[], [model.info.numLayers], [-1], [0.5], 1 as never]) await untrained(model, { layers }, 'layers');
    await untrained(model, { learningRate: NaN }, 'learningRate', /finite number above 0/);
    await untrained(model, { recompute: true }, 'recompute');
    await untrained(model, { rate: 1 } as never, 'rate', /layers/);
    using bert = await openModel(join(goldens, 'bert'), { simd });
    await untrained(bert, {}, 'model', /causal language model/);
    using apart = await openModel(text, { simd, workers: 1 });
    await untrained(apart, {}, 'model', /without the option workers/);
    refused(() => saveModel(apart), 'E_OPTION', 'model', /without the option workers/);
    refused(() => saveModel({} as never), 'E_OPTION', 'model', /openModel/);
    refused(() => saveModel(model, { dtype: 'int8' as never }), 'E_OPTION', 'dtype', /f32, f16|"f32"/);

    const trainer = await model.trainer();
    const before = bits(trainer.stateDict());
    refused(() => trainer.step(tokens, targets.subarray(1), batch), 'E_SHAPE', 'targets', /10/);
    refused(() => trainer.step(tokens, targets, { batch: 3 }), 'E_SHAPE', 'tokens');
    refused(() => trainer.step(tokens, targets, { causal: true } as never), 'E_OPTION', 'causal');
    refused(() => trainer.step([...tokens] as never, targets), 'E_OPTION', 'tokens', /Int32Array/);
    refused(() => trainer.step(Int32Array.of(1, 1e6), Int32Array.of(1, 1)), 'E_OPTION', 'tokens');
    refused(() => trainer.step(Int32Array.of(1, 2), Int32Array.of(1, 1e6)), 'E_OPTION', 'targets');
    refused(() => trainer.step(Int32Array.of(1, 2), Int32Array.of(-1, -1)), 'E_OPTION', 'targets', /all targets are -1/);
    refused(() => trainer.loadStateDict({}), 'E_SHAPE', 'stateDict', /model\.norm\.weight/);
    refused(() => trainer.setLearningRate(-1), 'E_OPTION', 'learningRate');
    const empty = await rejectionOf(trainer.batchOf([]));
    expect([empty.code, empty.argument]).toEqual(['E_OPTION', 'texts']);
    expect((await rejectionOf(trainer.batchOf(['the', [1e6]]))).argument).toBe('texts[1]');
    expect(bits(trainer.stateDict())).toEqual(before);
    expect(trainer.step(tokens, targets, batch).step).toBe(1);
    trainer.dispose();
    trainer.dispose();
    expect(trainer.disposed).toBe(true);
    refused(() => trainer.step(tokens, targets), 'E_DISPOSED', 'trainer');
    expect(await logitsOf(trainer.model)).toHaveLength(5 * model.info.vocabSize);
    trainer.model.dispose();
    refused(() => saveModel(trainer.model), 'E_DISPOSED', 'model');
    expect((await rejectionOf(trainer.model.logits(ids))).code).toBe('E_DISPOSED');
  });

  it('frees what it took, in any order', async () => {
    const { createApi } = modelContents;
    let core: Core | undefined;
    Object.assign(modelContents, { createApi: (...given: Parameters<typeof createApi>) => (core = createApi(...given)) });
    try {
      const bytes = (): number => (core as Core).runtime.heap.info().bytes;
      for (const layers of [undefined, [0]]) {
        const opened = await openFromSources(text, { simd, weights: 'f32' });
        const whole = bytes();
        expect(whole).toBe(opened.info.weightBytes);
        const trainer = await opened.trainer({ layers });
        const trained = trainer.model;
        trainer.step(tokens, targets, batch);
        await expect(opened.trainer({ layers, momentum: 1 })).rejects.toMatchObject({ argument: 'momentum' }); // the error of the sources
        const copies = Object.values(trainer.gradients()).reduce((sum, { data }) => sum + 4 * data.length, 0);
        expect(bytes()).toBe(whole + trainer.bytes());
        expect(trainer.bytes()).toBeGreaterThanOrEqual(4 * copies);
        expect(trained.info.weightBytes).toBe(whole);
        expect(saveHere(trained)).toHaveLength(4);
        trainer.dispose();
        expect(bytes()).toBe(whole + copies);
        opened.dispose();
        // What is not trained is that of the opened model.
        expect(bytes()).toBe(layers === undefined ? copies : whole + copies);
        expect(await trained.logits(ids)).toBeDefined();
        trained.dispose();
        expect(bytes()).toBe(0);
      }
    } finally {
      Object.assign(modelContents, { createApi });
    }
  });
});

it('gives nearly the same numbers in both builds', async () => {
  const learnt: Float32Array[] = [];
  for (const simd of builds) {
    using model = await openModel(join(goldens, 'qwen2'), { simd });
    using trainer = await model.trainer({ learningRate: 0.01, optimizer: 'sgd' });
    using trained = trainer.model;
    for (let step = 0; step < 3; step += 1) trainer.step(tokens, targets, batch);
    learnt.push(await logitsOf(trained));
  }
  const [first = new Float32Array(), last = first] = learnt;
  last.forEach((value, at) => expect(Math.abs(value - (first[at] as number))).toBeLessThan(1e-3));
});

it('trains and saves in a worker of the caller', async () => {
  const entry = new URL('../dist/models_node.js', import.meta.url).href;
  const code = `
    const { parentPort, workerData } = require('node:worker_threads');
    import(workerData.entry).then(async ({ openModel, saveModel }) => {
      const trainer = await (await openModel(workerData.folder)).trainer({ learningRate: 0.01 });
      const losses = Array.from({ length: 5 }, () => trainer.step(workerData.tokens, workerData.targets, { batch: 2 }).loss);
      const logits = (await trainer.model.logits(workerData.ids, { positions: 'all' })).data;
      const files = await Promise.all(saveModel(trainer.model).map(async (file) => [file.name, await file.arrayBuffer()]));
      parentPort.postMessage({ losses, logits, files });
    });`;
  const worker = new Worker(code, { eval: true, workerData: { entry, folder: join(goldens, 'llama3'), tokens, targets, ids } });
  const { losses, logits, files } = await new Promise<{ losses: number[]; logits: Float32Array; files: [string, ArrayBuffer][] }>(
    (resolve, reject) => {
      worker.on('message', resolve).on('error', reject);
    },
  );
  await worker.terminate();
  expect(losses[4]).toBeLessThan(losses[0] as number);
  const folder = mkdtempSync(join(tmpdir(), 'multihead-worker-'));
  for (const [name, bytes] of files) {
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    await writeFile(join(folder, name), new Uint8Array(bytes));
  }
  using model = await openModel(folder);
  expect(await logitsOf(model)).toEqual(logits);
  rmSync(folder, { recursive: true });
});
