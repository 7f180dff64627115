// Compares golden models on the GPU with the CPU, which has golden tests of its own: logits, states, captures, edits, generations.

import { openModel } from '/dist/models.js';
import { difference, Worst } from './compare.mjs';

/** Both passes are f32; LayerNorms and logits of small models amplify rounding. */
const BOUND = 1e-4;
const ids = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8];
const places = [
  { site: 'q', layer: 0 },
  { site: 'z', layer: 1, heads: [1] },
  { site: 'attn_out', layer: 1 },
  { site: 'mlp_hidden', layer: 1 },
  { site: 'pattern', layer: 1, heads: [0] },
];
const edits = [
  { site: 'z', layer: 0, heads: [1], scale: 0 },
  { site: 'resid_post', layer: 0, tokens: [2, 5], add: 0.5 },
  { site: 'mlp_out', layer: 1, tokens: [1], set: 0.25 },
];

const ofWeights = ['scores', 'pattern'].flatMap((site) => [0, 1].map((layer) => ({ site, layer, ...(layer === 0 && { heads: [1, 0] }) })));
const changedWeights = [
  { site: 'scores', layer: 0, heads: [1], tokens: [4], add: 2 },
  { site: 'scores', layer: 1, scale: 0.5 },
  { site: 'scores', layer: 1, heads: [0], set: 0.25 },
  { site: 'pattern', layer: 1, heads: [0], tokens: [7], set: 0.1 },
  { site: 'pattern', layer: 1, tokens: [3], scale: -1 },
  { site: 'pattern', layer: 1, heads: [0], add: 0.1 },
];
/** One of a token that a generation makes, too. */
const changedInText = [...changedWeights, { site: 'pattern', layer: 0, heads: [0], tokens: [13], scale: 0.25 }];

const stepsOf = async (model, { prompt = ids, ...options }) => {
  const steps = [];
  for await (const step of model.generate(prompt, { maxNewTokens: 5, stop: [], ...options })) steps.push(step);
  return steps;
};
const generated = async (model, options) => (await stepsOf(model, options)).map(({ token }) => token).join();

const compare = (worst, name, got, wanted, label) => {
  if (got.shape?.join() !== wanted.shape?.join()) throw new Error(`${name} has shape (${got.shape}), not (${wanted.shape}); ${label}`);
  worst.of(name, difference(got.data ?? got, wanted.data ?? wanted), BOUND, label);
};

const metrics = {
  difference: { token: 7, against: 11 },
  earlier: { token: 7, position: -4 },
  mean: { meanLogProb: true },
  function: (logits) => logits[7] ** 2 - logits[9],
};

/** Every analysis by passes, on both sides. */
async function compareAnalyses(worst, gpu, cpu, label) {
  const corrupt = ids.with(4, 2);
  const headScales = Float32Array.from({ length: cpu.info.numLayers * cpu.info.numHeads }, (_, at) => 0.5 + at / 8);
  const calls = {
    lens: (model) => model.lens(ids, { top: 0, tokens: [1, 7], logits: true }),
    'edited lens': (model) => model.lens(ids, { layers: [1], top: 0, tokens: [3], edits, headScales }),
    logProbs: (model) => model.logProbs(ids, { edits }),
    'patched layers': (model) => model.patch(ids, corrupt, metrics.difference, { by: 'layer', headScales }),
    'patched positions': (model) => model.patch(ids, corrupt, metrics.mean, { by: 'position' }),
    'patched heads': (model) => model.patch(ids, corrupt, metrics.function),
    'patched weights': (model) => model.patch(ids, corrupt, metrics.difference, { site: 'pattern', by: 'position' }),
    'patched keys': (model) => model.patch(ids, corrupt, metrics.earlier, { site: 'k' }),
    zeros: (model) => model.ablate([ids, [3, 1, 4]], metrics.mean, { headScales }),
    means: (model) => model.ablate([ids, [3, 1, 4]], metrics.function, { ablation: 'mean' }),
  };
  for (const metric of Object.values(metrics)) {
    const [a, b] = [await gpu.measure(ids, metric, { edits }), await cpu.measure(ids, metric, { edits })];
    worst.of('measure', Math.abs(a - b), BOUND, label);
  }
  for (const [name, call] of Object.entries(calls)) {
    const [a, b] = [await call(gpu), await call(cpu)];
    for (const part of ['clean', 'corrupt']) if (b[part] !== undefined) worst.of(name, Math.abs(a[part] - b[part]), BOUND, label);
    for (const part of ['values', 'logits', 'tokenProbabilities']) if (b[part] !== undefined) compare(worst, name, a[part], b[part], label);
  }
  const likely = await Promise.all([gpu, cpu].map((model) => model.lens(ids, { layers: [cpu.info.numLayers], top: 1 })));
  same(likely[0].ids.join(), likely[1].ids.join(), `likeliest tokens, ${label}`);
  const wrong = {
    position: (model) => model.measure(ids, { token: 7, position: 12 }),
    shorter: (model) => model.patch(ids, [1, 2], metrics.difference),
    by: (model) => model.patch(ids, corrupt, metrics.difference, { site: 'mlp_out', by: 'head' }),
    one: (model) => model.ablate([[3]], metrics.mean),
    aborted: (model) => model.patch(ids, corrupt, metrics.mean, { signal: AbortSignal.abort() }),
    infinite: (model) => model.measure(ids, () => NaN),
  };
  for (const [name, call] of Object.entries(wrong)) {
    const [a, b] = await Promise.all([gpu, cpu].map((model) => rejection(call(model))));
    same(a.message, b.message, `error of ${name}, ${label}`);
  }
}

async function check(name, options) {
  const [gpu, cpu] = [await openModel(await filesOf(name), { ...options, device: 'gpu' }), await openModel(await filesOf(name), options)];
  const worst = new Worst();
  // Looking into the models of all families would take minutes.
  const isLookedInto = options.weights === undefined && ['gpt2', 'llama3', 'bloom', 'roberta'].includes(name);
  const label = `${name}, ${options.weights ?? 'as stored'}`;
  if (!gpu.device.startsWith('gpu: ') || cpu.device !== 'cpu') throw new Error(`devices are ${gpu.device} and ${cpu.device}`);
  const { output, causal } = cpu.info;
  const wanted = ['lastHiddenState', 'hiddenStates', ...(output === 'none' ? [] : ['logits']), ...(cpu.info.hasPooler ? ['poolerOutput'] : [])];
  const [ofGpu, ofCpu] = [await gpu.forward(ids, { return: wanted }), await cpu.forward(ids, { return: wanted })];
  for (const each of wanted) compare(worst, each, ofGpu[each], ofCpu[each], label);
  compare(worst, 'attentions', await gpu.attentions(ids), await cpu.attentions(ids), label);
  // The CPU's products of few rows with integers round their inputs, too.
  const isExact = options.weights === undefined || !options.weights.startsWith('int');
  const texts = [ids, isExact ? [3, 1] : ids.toReversed()];
  compare(worst, 'embed', (await gpu.embed(texts))[1], (await cpu.embed(texts))[1], label);
  const run = (model) => model.run(ids, { capture: places, edits });
  const [changed, expected] = [await run(gpu), await run(cpu)];
  for (const [at, { data }] of Object.entries(expected.captures))
    compare(worst, 'captures', changed.captures[at], { data, shape: expected.captures[at].shape }, label);
  if (expected.logits) compare(worst, 'edited', changed.logits, expected.logits, label);
  if (isLookedInto) {
    const look = (model) => model.run(ids, { capture: ofWeights, edits: changedWeights });
    const [there, here] = [await look(gpu), await look(cpu)];
    for (const [at, capture] of here.captures.entries()) compare(worst, 'changed weights', there.captures[at], capture, label);
    if (here.logits) compare(worst, 'after changed weights', there.logits, here.logits, label);
  }
  if (output === 'languageModel' && causal && isExact) {
    if (isLookedInto) await compareAnalyses(worst, gpu, cpu, label);
    for (const each of [{}, { cacheType: 'f16' }, { edits }, { temperature: 0.8, seed: 3 }]) {
      const [a, b] = [await generated(gpu, each), await generated(cpu, each)];
      if (a !== b) throw new Error(`tokens are ${a}, not ${b}; ${JSON.stringify(each)}, ${label}`);
    }
    // The CPU has no cache then, so that one of f16 rounds on the GPU alone.
    for (const cacheType of isLookedInto ? ['f32', 'f16'] : []) {
      const changed = { edits: changedInText, cacheType, topTokens: 100 };
      const [a, b] = await Promise.all([gpu, cpu].map((model) => stepsOf(model, changed)));
      for (const [at, { token, topTokens }] of b.entries()) {
        same(a[at].token, token, `token ${at} with changed weights, ${cacheType}, ${label}`);
        const share = new Map(a[at].topTokens.map((each) => [each.token, each.probability]));
        const apart = topTokens.map((each) => Math.abs(Math.log((share.get(each.token) ?? each.probability) / each.probability)));
        worst.of(`shares, ${cacheType}`, Math.max(...apart), cacheType === 'f32' ? BOUND : 1e-2, label);
      }
    }
    if (isLookedInto && cpu.info.maxTokens >= 128) {
      // More tokens than a pass takes then.
      const long = { prompt: Array.from({ length: 100 }, (_, at) => ids[at % ids.length]), edits: changedInText };
      const [a, b] = [await generated(gpu, long), await generated(cpu, long)];
      same(a, b, `tokens of a long text with changed weights, ${label}`);
    }
  }
  for (const model of [gpu, cpu]) model.dispose();
  return worst;
}

const test = (names, options, thorough) => ({
  name: `models ${names.join(' ')}${options.weights ? `, ${options.weights}` : ''}`,
  kind: 'all',
  thorough,
  async run() {
    const all = [];
    for (const name of names) all.push(`${name} ${await check(name, options)}`);
    return all.join('; ');
  },
});

const filesOf = async (name) => {
  const read = async (file) => new File([await (await fetch(`/cases/models/${name}/${file}`)).arrayBuffer()], file);
  return Promise.all(['config.json', 'model.safetensors'].map(read));
};

/** Runs with properties of objects replaced: [object, name, function that makes the new value of the old one]. */
async function withChanges(changes, run) {
  const before = changes.map(([object, name]) => Object.getOwnPropertyDescriptor(object, name));
  changes.forEach(([object, name, make], at) => {
    Object.defineProperty(object, name, {
      configurable: true,
      writable: true,
      value: make(before[at]?.value ?? (before[at] ? undefined : object[name])),
    });
  });
  try {
    return await run();
  } finally {
    changes.forEach(([object, name], at) => (before[at] ? Object.defineProperty(object, name, before[at]) : delete object[name]));
  }
}

const same = (got, wanted, what) => {
  if (got !== wanted) throw new Error(`${what} is ${got}, not ${wanted}`);
};
const rejection = async (promise) =>
  promise.then(
    (value) => {
      throw new Error(`no error, but ${value}`);
    },
    (error) => error,
  );

/** What 'auto' chooses, and that it goes on when the GPU fails. SwiftShader must not be known as such. */
async function automatic() {
  const cpu = await openModel(await filesOf('gpt2'));
  const expected = { tokens: await generated(cpu, {}), logits: (await cpu.logits(ids)).data };
  cpu.dispose();
  const software = await openModel(await filesOf('gpt2'), { device: 'auto' });
  if (!/^cpu: .*computes on the CPU/.test(software.device)) throw new Error(`device is ${software.device}`);
  software.dispose();

  const devices = new Set();
  const hidden = [
    [GPUAdapterInfo.prototype, 'isFallbackAdapter', () => false],
    [
      GPUAdapter.prototype,
      'requestDevice',
      (old) =>
        async function (...given) {
          const device = await old.apply(this, given);
          devices.add(device);
          return device;
        },
    ],
    [
      GPUDevice.prototype,
      'destroy',
      (old) =>
        function () {
          devices.delete(this);
          return old.call(this);
        },
    ],
  ];
  // Each look at the clock is later than the one before by more: what is measured first, which is the GPU, is faster.
  let looks = 0;
  const gpuWins = [performance, 'now', () => () => (looks += 1) ** 2];
  const cpuWins = [performance, 'now', () => () => Math.sqrt((looks += 1))];
  const quickClock = [globalThis, 'setInterval', (old) => (run, time) => old(run, time / 300)];
  const never = () => () => new Promise(() => {});
  /** The first call, with which a device opens, still ends. */
  const neverAgain = (old) => {
    let calls = 0;
    return function (...given) {
      calls += 1;
      return calls === 1 ? old.apply(this, given) : new Promise(() => {});
    };
  };
  const refused = () => () => Promise.reject(new Error('no such shader'));
  const notes = [];

  /** Opens with these changes, and `use`s the model while these are in force. */
  const check = async (what, changes, pattern, use = async () => {}) => {
    await withChanges([...hidden, ...changes], async () => {
      const model = await openModel(await filesOf('gpt2'), { device: 'auto' });
      await use(model);
      for (let pass = 0; pass < 3; pass += 1) {
        const { data } = await model.logits(ids);
        if (difference(data, expected.logits) > BOUND) throw new Error(`${what}: logits differ`);
      }
      same(await generated(model, {}), expected.tokens, `${what}: tokens`);
      if (!pattern.test(model.device)) throw new Error(`${what}: device is ${model.device}`);
      notes.push(model.device);
      // The CPU has the weights for what a GPU refuses.
      await model.lens(ids);
      await generated(model, { numBeams: 2 });
      await model.run(ids, { edits: [{ site: 'scores', layer: 0, set: 1 }] });
      model.dispose();
    });
    same(devices.size, 0, `${what}: open devices`);
  };
  await check('a fast GPU', [gpuWins], /^gpu: .*passes over less than 16 tokens take .* ms; tokens take .* ms, on the CPU .* ms$/);
  await check('a slow GPU', [cpuWins], /^cpu: faster than gpu: .*; passes .*; tokens .* ms$/);
  await check('no adapter', [[GPU.prototype, 'requestAdapter', () => async () => null]], /^cpu: gpu: expected an adapter, got none/);
  await check('a small GPU', [[GPUSupportedLimits.prototype, 'maxBufferSize', () => 1024]], /^cpu: weights: out of memory/);
  await check(
    'a refused shader',
    [[GPUDevice.prototype, 'createComputePipelineAsync', refused]],
    /^cpu: gpu: expected a driver that compiles .*no such shader/,
  );
  await check(
    'a hung queue',
    [[GPUBuffer.prototype, 'mapAsync', neverAgain], quickClock],
    /^cpu: gpu: expected a device that ends what it does within 120 s/,
  );
  const late = /^cpu: gpu: expected a device that computes within 5 s/;
  await check('a device that hangs at once', [[GPUBuffer.prototype, 'mapAsync', never], quickClock], late);
  await check('a hung adapter', [[GPU.prototype, 'requestAdapter', never], quickClock], late);
  await check('a lost device', [gpuWins], /^cpu: gpu: the device is lost/, async (model) => {
    const [tokens, sampled] = [[], { temperature: 0.8, seed: 3, maxNewTokens: 6, stop: [] }];
    for await (const { token } of model.generate(ids, sampled)) {
      tokens.push(token);
      if (tokens.length < 3) continue;
      if (tokens.length === 3 && !model.device.startsWith('gpu: ')) throw new Error(`device is ${model.device}`);
      for (const device of devices) device.destroy();
    }
    const again = await openModel(await filesOf('gpt2'));
    same(tokens.join(), await generated(again, sampled), 'tokens over the loss');
    again.dispose();
  });
  // A model on the GPU alone gives one error with the cause.
  await withChanges([...hidden, [GPUBuffer.prototype, 'mapAsync', neverAgain], quickClock], async () => {
    const model = await openModel(await filesOf('gpt2'), { device: 'gpu' });
    const errors = [await rejection(model.logits(ids)), await rejection(model.logits(ids))];
    for (const { code, message } of errors)
      same(`${code} ${message}`, 'E_GPU gpu: expected a device that ends what it does within 120 s, got none: it hangs', 'error');
    model.dispose();
  });
  same(devices.size, 0, 'open devices');
  const large = await withChanges(hidden, async () => openModel(await filesOf('deberta_v3'), { device: 'auto' }));
  if (!/^cpu: device: .*relative positions/.test(large.device)) throw new Error(`device is ${large.device}`);
  large.dispose();
  same(devices.size, 0, 'open devices');
  return notes.slice(0, 2).join(' | ');
}

/** Each call is the first one of its model: it loads the parts of the core that it needs. */
async function firstCalls() {
  const calls = {
    logits: (model) => model.logits(ids),
    embed: (model) => model.embed(ids),
    attentions: (model) => model.attentions(ids),
    captures: (model) => model.run(ids, { capture: places }),
    edits: (model) => model.run(ids, { edits }),
    tokens: (model) => generated(model, {}),
    'tokens with f16': (model) => generated(model, { cacheType: 'f16' }),
    'edited tokens': (model) => generated(model, { edits }),
  };
  for (const [name, call] of Object.entries(calls)) {
    const model = await openModel(await filesOf('gpt2'), { device: 'gpu' });
    await call(model).catch((error) => {
      throw new Error(`${name}: ${error.message}`);
    });
    model.dispose();
  }
  return Object.keys(calls).join(', ');
}

export const modelTests = [
  test(['gpt2'], {}, false),
  test(['llama3', 'bert', 'hunyuan', 'gemma3', 'phi3', 'olmo2', 'gpt_neox', 'gptj', 'bloom', 'cohere'], {}, true),
  test(['roberta', 'mpnet', 'electra', 'modernbert_classes', 'bert_classes', 'mistral_classes', 'albert', 'esm'], {}, true),
  ...['f16', 'bf16', 'int8', 'int4'].map((weights) => test(['llama3', 'gpt2'], { weights, embeddingWeights: weights }, true)),
  { name: 'first calls of models', kind: 'all', thorough: true, run: firstCalls },
  { name: "models with device 'auto'", kind: 'all', thorough: true, run: automatic },
];
