// multihead/models in workers: the same numbers as on one thread, and workers that end.

import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Worker as NodeWorker, Worker } from 'node:worker_threads';
import { type MultiheadError, type PlainTensor, readSafetensors, writeSafetensors } from 'multihead';
import { type ForwardOutput, type Model, type ModelFile, openModel, type OpenModelOptions, type Site } from 'multihead/models';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { builds, rejectionOf } from './builds.ts';
import { FakeDevice } from './fake_gpu.ts';
import { onlyThread, running, sabotage, until } from './pool_threads.ts';
import { random } from './random.ts';
import { goldens } from './tokenizer_files.ts';

const names = readdirSync(goldens, { withFileTypes: true })
  .filter((entry) => entry.isDirectory())
  .map(({ name }) => name);

afterEach(() => until(() => running.size === 0));

/** The sizes of a golden model that grow with its width. */
const widths = [
  ...['hidden_size', 'intermediate_size', 'n_embd', 'vocab_size', 'head_dim'],
  ...['d_model', 'd_kv', 'd_ff', 'encoder_ffn_dim', 'decoder_ffn_dim', 'decoder_vocab_size'],
];

/** A golden model with 16 times its widths and random weights, so that the workers divide its products. */
function wide(name: string, seed: number): ModelFile[] {
  const r = random(seed);
  const config = JSON.parse(readFileSync(join(goldens, name, 'config.json'), 'utf8')) as Record<string, unknown>;
  for (const width of widths) if (typeof config[width] === 'number') config[width] *= 16;
  const { tensors } = readSafetensors(readFileSync(join(goldens, name, 'model.safetensors')));
  const made: Record<string, PlainTensor> = {};
  for (const [tensor, { shape: narrow }] of Object.entries(tensors)) {
    const isPlaces = /wpe|position|token_type|final_logits_bias/.test(tensor);
    const isBuckets = /relative_attention_bias/.test(tensor);
    const shape = narrow.map((extent, axis) => (isBuckets || (isPlaces && axis === 0) ? extent : 16 * extent));
    const data = r.floats(shape.reduce((product, extent) => product * extent, 1));
    const isGain = shape.length === 1 && tensor.endsWith('weight');
    made[tensor] = { shape, data: data.map((value) => (isGain ? 1 + 0.1 * value : 0.1 * value)) };
  }
  return [new File([JSON.stringify(config)], 'config.json'), new File([writeSafetensors(made)], 'model.safetensors')];
}

const idsOf = (count: number, vocabSize: number): number[] => Array.from({ length: count }, (_, at) => (7 * at + 3) % vocabSize);

async function tokensOf(model: Model, prompt: number[], options: Parameters<Model['generate']>[1] = {}) {
  const steps = [];
  for await (const step of model.generate(prompt, { maxNewTokens: 8, topTokens: 3, ...options })) steps.push(step);
  return steps;
}

/** The results with a hash in place of each array: comparing them number by number takes most of the time of these tests. */
const hashed = (results: unknown[]): unknown =>
  JSON.parse(
    JSON.stringify(results, (_, value: unknown) => (value instanceof Float32Array ? createHash('sha1').update(value).digest('hex') : value)),
  );

const sites = [
  ...['resid_pre', 'q', 'k', 'v', 'scores', 'pattern', 'z', 'attn_out', 'resid_mid', 'mlp_hidden', 'mlp_out', 'resid_post'],
  ...['cross_q', 'cross_k', 'cross_v', 'cross_scores', 'cross_pattern', 'cross_z', 'cross_attn_out'],
] as Site[];

/** Results, or the message of an error. */
const outcomeOf = (promise: Promise<unknown>): Promise<unknown> => promise.catch(({ message }: Error) => message);

/** Expects the bits of one thread from every method that computes. */
async function expectSame(model: Model, one: Model): Promise<void> {
  const { info } = one;
  expect(model.info).toEqual(info);
  expect(model.labels).toEqual(one.labels);
  const pixels: { pixels?: Float32Array } = info.takesPixels ? { pixels: random(3).floats(info.channels * info.imageSize ** 2) } : {};
  const decoder = info.encoder && { decoderInput: idsOf(7, info.vocabSize) };
  const given = { ...pixels, ...decoder };
  const ids = info.takesPixels ? [] : idsOf(19, info.vocabSize);
  const outputs: ForwardOutput[] = ['hiddenStates', 'lastHiddenState'];
  if (info.output !== 'none') outputs.push('logits');
  if (info.hasPooler) outputs.push('poolerOutput');
  const headScales = random(4).floats(info.numLayers * info.numHeads);
  const passes = (of: Model) => [
    of.forward(ids, { return: outputs, ...given }),
    of.forward(ids, { return: outputs, headScales, ...given }),
    of.attentions(ids, given),
    of.attentions(ids, { layer: 0, head: info.numHeads - 1, ...given }),
    ...(pixels.pixels === undefined ? [(of.encoder ?? of).embed([ids, ids.slice(4), [5]])] : [of.embedImages([pixels.pixels])]),
    ...(info.output === 'languageModel' ? [of.logits(ids, { positions: 'all', ...given }), of.logits(ids, given)] : []),
    ...(decoder ? [of.crossAttentions(ids, given), (of.encoder as Model).attentions(ids)] : []),
  ];
  // All at once: the workers run them one after another.
  expect(hashed(await Promise.all(passes(model)))).toEqual(hashed(await Promise.all(passes(one))));
  const inside = (of: Model) =>
    sites.map((site, at) => {
      const change = at % 2 === 0 ? { scale: 0.5 } : { tokens: [2], add: 0.25 };
      return outcomeOf(of.run(ids, { capture: [{ site, layer: info.numLayers - 1 }], edits: [{ site, layer: 0, ...change }], ...given }));
    });
  expect(hashed(await Promise.all(inside(model)))).toEqual(hashed(await Promise.all(inside(one))));
  if (one.vision !== undefined) await expectSame(model.vision as Model, one.vision);
  if (info.output !== 'languageModel') return;
  expect(await tokensOf(model, ids, decoder)).toEqual(await tokensOf(one, ids, decoder));
  const search = { numBeams: 3, topTokens: 0, ...decoder };
  if (decoder) expect(await tokensOf(model, ids, search)).toEqual(await tokensOf(one, ids, search));
  const drawn = { ...decoder, temperature: 1.5, topK: 50, topP: 0.95, repetitionPenalty: 1.1, seed: 7, cacheType: 'int8' } as const;
  expect(await tokensOf(model, ids, drawn)).toEqual(await tokensOf(one, ids, drawn));
  const other = ids.map((id, at) => (at === 4 ? (id + 1) % info.vocabSize : id));
  const texts = [ids.slice(9), ids.slice(12)];
  const metric = (logits: Float32Array) => (logits[3] as number) ** 2;
  const written = decoder && { decoderInputs: texts.map((text) => text.slice(-3)) };
  const analyses = (of: Model) =>
    [
      of.lens(ids, { top: 3, tokens: [5], headScales, edits: [{ site: 'z', layer: 0, heads: [0], scale: 0 }] }),
      ...[of.logProbs(ids), of.measure(ids, { token: 5, position: -2 }), of.measure(ids, metric), of.measure(ids, { token: -1 })],
      ...[of.patch(ids, other, { token: 5 }), of.patch(ids, other, metric, { by: 'layer' }), of.patch(ids, [1], { token: 5 })],
      of.ablate(texts, { meanLogProb: true }, { ablation: 'mean', ...written }),
      of.ablate(texts, metric, written),
    ].map(outcomeOf);
  expect(hashed(await Promise.all(analyses(model)))).toEqual(hashed(await Promise.all(analyses(one))));
  const differences = await Promise.all([model, one].map((of) => outcomeOf(of.measure(ids, { token: 5, against: 7 }))));
  // Members of a team compute both logits, of int8 and int4 with rounded inputs; one thread computes the difference in f64.
  if (typeof differences[1] === 'number') expect(Math.abs((differences[0] as number) - differences[1])).toBeLessThan(0.02);
  for (const site of ['q', 'resid_mid', 'cross_z'] as const) {
    const changed = { ...decoder, edits: [{ site, layer: info.numLayers - 1, add: 0.25 }], maxNewTokens: 4 };
    expect(await outcomeOf(tokensOf(model, ids, changed))).toEqual(await outcomeOf(tokensOf(one, ids, changed)));
  }
  const several = (of: Model) => of.complete([ids, ids.slice(2), ids.slice(3)], { ...decoder, maxNewTokens: 5 });
  expect(await several(model)).toEqual(await several(one));
}

describe.each(builds)('a model in workers, %s', (simd) => {
  it.each(names)('%s: two workers give the bits of one thread', async (name) => {
    using one = await openModel(join(goldens, name), { simd });
    using model = await openModel(join(goldens, name), { simd, workers: 2 });
    expect([one.workers, model.workers]).toEqual([0, 2]);
    await expectSame(model, one);
  });

  // All pairs of a family and a type would take four times as long. Each way of storing q, k and v meets blocks of weights.
  it.each([
    ['gpt2', 2, 'int8', 3],
    ['gpt_neox', 3, 'int4', 2],
    ['phi3', 3, 'f16', 2],
    ['llama3', 2, 'int4', 3],
    ['olmo2', 3, 'int8', 2],
    ['bert_masked', 2, 'f16', 3],
    ['t5_gated_seq2seq', 3, 'int8', 2],
    ['marian_two', 2, 'int8', 3],
  ] as const)('wide %s: products that are divided, f32 by %d workers and %s by %d', async (name, all, weights, few) => {
    const source = wide(name, 5);
    for (const [stored, workers] of [
      ['f32', all],
      [weights, few],
    ] as const) {
      using one = await openModel(source, { simd, weights: stored });
      using model = await openModel(source, { simd, weights: stored, workers });
      await expectSame(model, one);
    }
  });

  it('one worker gives them too', async () => {
    using one = await openModel(wide('llama3', 6), { simd });
    using model = await openModel(wide('llama3', 6), { simd, workers: 1 });
    expect(model.workers).toBe(1);
    await expectSame(model, one);
  });
});

const open = (options: OpenModelOptions = { workers: 2 }, name = 'gpt2') => openModel(join(goldens, name), options);

describe('openModel with workers', () => {
  it('takes files in every form', async () => {
    using one = await open({});
    const files = ['config.json', 'model.safetensors'].map((name) => new File([readFileSync(join(goldens, 'gpt2', name))], name));
    const response = (file: File): Response => Object.defineProperty(new Response(file), 'url', { value: `https://example.org/gpt2/${file.name}` });
    for (const source of [() => files, () => files.map(response), () => new URL(`file://${goldens}/gpt2`)]) {
      for (const workers of [1, 2]) {
        using model = await openModel(source(), { workers });
        expect((await model.logits([1, 2])).data).toEqual((await one.logits([1, 2])).data);
      }
    }
  });

  it('takes as many workers as there are cores', async () => {
    using model = await open({ workers: 'all' });
    expect(model.workers).toBeGreaterThan(0);
    expect(model.workers).toBe(running.size);
  });

  it("are the CPU of device 'auto'", async () => {
    using model = await open({ workers: 2, device: 'auto' });
    using one = await open({});
    expect([model.workers, running.size]).toEqual([2, 2]);
    expect(model.device).toMatch(/^cpu: gpu: expected /);
    expect((await model.logits([1, 2, 3])).data).toEqual((await one.logits([1, 2, 3])).data);
    const complete = (of: Model) => of.complete([1, 2, 3], { maxNewTokens: 5, stop: [] });
    expect((await complete(model)).ids).toEqual((await complete(one)).ids);
    expect(await rejectionOf(open({ workers: 2, device: 'gpu' }))).toMatchObject({ code: 'E_OPTION', argument: 'workers' });
  });

  it('are the whole model after five seconds in which no adapter comes, and a later device ends', async () => {
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
    const late = new FakeDevice();
    let answer = (_: object): void => {};
    const requestAdapter = vi.fn(() => new Promise((resolve) => (answer = resolve)));
    vi.stubGlobal('navigator', { gpu: { requestAdapter } });
    try {
      let isOpen = false;
      const opening = open({ device: 'auto' }).finally(() => (isOpen = true));
      await until(() => requestAdapter.mock.calls.length > 0);
      await vi.advanceTimersByTimeAsync(4999);
      expect(isOpen).toBe(false);
      await vi.advanceTimersByTimeAsync(1);
      using model = await opening;
      expect(model.device).toBe('cpu: gpu: expected a device that computes within 5 s, got none: it hangs');
      answer({ features: new Set(), limits: {}, requestDevice: async () => late });
      await until(() => late.isDestroyed);
    } finally {
      vi.unstubAllGlobals();
      vi.useRealTimers();
    }
  });

  it('refuses other options', async () => {
    for (const workers of [0, 65, 1.5, '2', null, NaN]) {
      const error = await rejectionOf(open({ workers: workers as never }));
      expect([error.code, error.argument], String(workers)).toEqual(['E_OPTION', 'workers']);
    }
    for (const options of [{ workers: 2, worker: 3 }, { worker: () => new Worker('') }, { workers: 2, worker: () => 3 }]) {
      const error = await rejectionOf(open(options as never));
      expect([error.code, error.argument]).toEqual(['E_OPTION', 'worker']);
    }
    expect(running.size).toBe(0);
  });

  it("takes the caller's workers", async () => {
    const made: NodeWorker[] = [];
    const worker = () => {
      const each = new Worker(new URL('../dist/models_worker.js', import.meta.url));
      made.push(each);
      return each;
    };
    using model = await open({ workers: 2, worker });
    expect([model.workers, made.length]).toEqual([2, 2]);
    using one = await open({});
    expect((await model.logits([1, 2])).data).toEqual((await one.logits([1, 2])).data);
  });

  it('has the errors of one thread', async () => {
    const failures = (model: Model) => [
      model.logits([0, model.info.vocabSize]),
      model.logits([1.5]),
      model.logits([]),
      model.embed([[1], []]),
      model.logits('a text'),
      model.attentions([1], { layer: 99, head: 0 }),
      model.attentions([1], { head: 99 }),
      model.logits([1], { tokenTypes: [0] }),
      model.logits([1], { pixels: new Float32Array(3) }),
      model.logits([1], { headScales: new Float32Array(1) }),
      model.logits([1], { headScales: new Float32Array() }),
      model.logits([1], { headScales: (() => {}) as never }),
      model.forward([1], { return: ['poolerOutput'] }),
      model.complete([1], { topP: 2 }),
      model.complete([1], { seed: -1 }),
      model.complete([]),
      model.complete([model.info.vocabSize]),
      model.complete(idsOf(model.info.maxTokens + 1, 2)),
    ];
    using one = await open({});
    for (const workers of [1, 2]) {
      using model = await open({ workers });
      const [wanted, got] = await Promise.all([one, model].map((of) => Promise.all(failures(of).map((each) => rejectionOf(each)))));
      const parts = (errors: typeof wanted) =>
        errors?.map(({ code, argument, expected, got, message }) => ({ code, argument, expected, got, message }));
      expect(parts(got)).toEqual(parts(wanted));
      expect((await model.logits([1, 2])).data).toEqual((await one.logits([1, 2])).data);
    }
  });

  it('refuses the folders that one thread refuses, and ends its workers', async () => {
    const file = (name: string, change: (bytes: Buffer) => Buffer = (bytes) => bytes): File =>
      new File([new Uint8Array(change(readFileSync(join(goldens, 'gpt2', name))))], name);
    const config = (name: string, value: unknown) => (bytes: Buffer) =>
      Buffer.from(JSON.stringify({ ...JSON.parse(bytes.toString()), [name]: value }));
    const infinite = (bytes: Buffer): Buffer => Buffer.concat([bytes.subarray(0, -4), Buffer.from(Float32Array.of(Infinity).buffer)]);
    const sources = [
      [file('config.json')],
      [file('config.json', config('model_type', 'mamba')), file('model.safetensors')],
      [file('config.json', config('n_embd', 96)), file('model.safetensors')],
      [file('config.json'), file('model.safetensors', (bytes) => bytes.subarray(0, bytes.length / 2))],
      [file('config.json'), file('model.safetensors', infinite)],
    ];
    for (const source of sources) {
      const options = { weights: 'int8' } as const;
      const wanted = await rejectionOf(openModel(source, options));
      const got = await rejectionOf(openModel(source, { ...options, workers: 2 }));
      expect([got.code, got.argument, got.message]).toEqual([wanted.code, wanted.argument, wanted.message]);
      await until(() => running.size === 0);
    }
  });

  it('reports progress, and ends when it is aborted', async () => {
    const seen: number[] = [];
    using model = await open({ workers: 2, onProgress: (loaded) => seen.push(loaded) });
    const alone: number[] = [];
    using one = await open({ onProgress: (loaded) => alone.push(loaded) });
    expect(seen).toEqual(alone);
    for (const when of ['before', 'starting', 'reading']) {
      const aborter = new AbortController();
      if (when === 'before') aborter.abort();
      const opening = open({ workers: 2, signal: aborter.signal, onProgress: () => aborter.abort() });
      if (when === 'starting') aborter.abort();
      const error = await rejectionOf(opening);
      expect([error.code, error.argument], when).toEqual(['E_ABORTED', 'signal']);
    }
    model.dispose();
    one.dispose();
  });

  it('lives on the calling thread if no worker can be started', async () => {
    using one = await open({});
    for (const change of [{ refuse: new Error('no threads here') }, { script: './nothing.js' }]) {
      Object.assign(sabotage, change);
      using model = await open().finally(() => Object.assign(sabotage, { refuse: undefined, script: undefined }));
      expect(model.workers).toBe(0);
      expect((await model.logits([1, 2])).data).toEqual((await one.logits([1, 2])).data);
    }
  });

  it('uses one worker without shared memory', async () => {
    vi.stubGlobal('crossOriginIsolated', false);
    using model = await open({ workers: 3 }).finally(() => vi.unstubAllGlobals());
    expect(model.workers).toBe(1);
    expect((await model.logits([1, 2])).shape).toEqual([model.info.vocabSize]);
  });
});

describe('a model whose workers end', () => {
  /** Takes seconds. */
  const long = (model: Model) => model.embed(Array.from({ length: 400 }, () => idsOf(100, model.info.vocabSize)));
  /** Begins a long call, and two calls that wait for it; returns promises of their errors. */
  const rejectionsOf = async (model: Model, steps: AsyncIterator<unknown>) => {
    const first = rejectionOf(long(model));
    await new Promise((resolve) => setTimeout(resolve, 20));
    return [first, rejectionOf(model.logits([1])), rejectionOf(steps.next())];
  };

  it('rejects the calls that wait and all later ones', async () => {
    using model = await openModel(wide('llama3', 1), { workers: 2 });
    const [thread] = running;
    const steps = model.generate([1, 2]);
    await steps.next();
    const errors = Promise.all(await rejectionsOf(model, steps));
    await thread?.terminate();
    for (const error of [...(await errors), await rejectionOf(model.logits([1]))]) {
      expect([error.code, error.argument]).toEqual(['E_WORKER', 'model']);
      expect(error.message).toContain('the model is lost: open it again');
    }
    expect(() => model.generate([1])).toThrow('lost');
    await until(() => running.size === 0);
    expect(model.disposed).toBe(false);
  });

  it('is disposed while it is busy', async () => {
    const model = await openModel(wide('llama3', 1), { workers: 2 });
    const steps = model.generate([1, 2]);
    await steps.next();
    const errors = Promise.all(await rejectionsOf(model, steps));
    model.dispose();
    model.dispose();
    expect(model.disposed).toBe(true);
    for (const error of [...(await errors), await rejectionOf(model.logits([1]))]) {
      expect([error.code, error.argument]).toEqual(['E_DISPOSED', 'model']);
    }
  });

  it('keeps working after a generation was aborted or left', async () => {
    using model = await openModel(wide('llama3', 2), { workers: 2 });
    const ids = idsOf(60, model.info.vocabSize);
    const before = await tokensOf(model, ids);
    for (const wait of [true, false]) {
      const aborter = new AbortController();
      const steps = model.generate(ids, { signal: aborter.signal });
      await steps.next();
      const next = Promise.allSettled([steps.next()]);
      if (wait) await new Promise((resolve) => setTimeout(resolve, 1));
      aborter.abort();
      const [step] = await next;
      // Perhaps the step was done before the signal.
      const error = step?.status === 'rejected' ? (step.reason as MultiheadError) : await rejectionOf(steps.next());
      expect(error.code).toBe('E_ABORTED');
    }
    for await (const { token } of model.generate(ids)) {
      expect(token).toBe(before[0]?.token);
      break;
    }
    expect(await tokensOf(model, ids)).toEqual(before);
  });

  it('settles every call of a storm, each with its own result', async () => {
    using one = await openModel(wide('llama3', 3));
    using model = await openModel(wide('llama3', 3), { workers: 2 });
    const { vocabSize } = one.info;
    const calls = (of: Model) =>
      Array.from({ length: 120 }, (_, at): Promise<unknown> => {
        const ids = idsOf(1 + (at % 23), vocabSize);
        if (at % 4 === 0) return tokensOf(of, ids, { seed: at, temperature: 1 });
        if (at % 4 === 1) return of.embed([ids, [at]]);
        if (at % 4 === 2) return of.attentions(ids, { layer: at % 3 === 0 ? 0 : 1 });
        return at % 8 === 3 ? of.logits(ids) : rejectionOf(of.logits([vocabSize])).then(({ message }) => message);
      });
    expect(await Promise.all(calls(model))).toEqual(await Promise.all(calls(one)));
  });

  /** The garbage collector. */
  const collector = async (): Promise<() => void> => {
    const { setFlagsFromString } = await import('node:v8');
    const { runInNewContext } = await import('node:vm');
    setFlagsFromString('--expose-gc');
    return runInNewContext('gc') as () => void;
  };

  it('frees a generation that nobody references', async () => {
    const released: unknown[] = [];
    const worker = () => {
      const each = new Worker(new URL('../dist/models_worker.js', import.meta.url));
      const post = each.postMessage.bind(each);
      each.postMessage = (message: { kind: string }, transfer) => {
        if (message.kind === 'release') released.push(message);
        post(message, transfer);
      };
      return each;
    };
    using model = await open({ workers: 2, worker });
    await model.generate([1, 2]).next();
    const collect = await collector();
    await until(() => {
      collect();
      return released.length === 2;
    });
    expect((await model.logits([1])).shape).toEqual([model.info.vocabSize]);
  });

  it('ends its thread when nobody references it', async () => {
    await open({ workers: 1 }).then((model) => model.logits([1]));
    const thread = await onlyThread();
    expect(thread).toBeDefined();
    const collect = await collector();
    await until(() => {
      collect();
      return running.size === 0;
    });
  });
});
