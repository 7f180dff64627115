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

const generated = async (model, options) => {
  const tokens = [];
  for await (const { token } of model.generate(ids, { maxNewTokens: 5, stop: [], ...options })) tokens.push(token);
  return tokens.join();
};

const compare = (worst, name, got, wanted, label) => {
  if (got.shape?.join() !== wanted.shape?.join()) throw new Error(`${name} has shape (${got.shape}), not (${wanted.shape}); ${label}`);
  worst.of(name, difference(got.data ?? got, wanted.data ?? wanted), BOUND, label);
};

async function check(name, options) {
  const folder = new URL(`/cases/models/${name}/`, location.href).href;
  const read = async (file) => new File([await (await fetch(folder + file)).arrayBuffer()], file);
  const files = () => Promise.all(['config.json', 'model.safetensors'].map(read));
  const [gpu, cpu] = [await openModel(await files(), { ...options, device: 'gpu' }), await openModel(await files(), options)];
  const worst = new Worst();
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
  if (output === 'languageModel' && causal && isExact) {
    for (const each of [{}, { cacheType: 'f16' }, { edits }, { temperature: 0.8, seed: 3 }]) {
      const [a, b] = [await generated(gpu, each), await generated(cpu, each)];
      if (a !== b) throw new Error(`tokens are ${a}, not ${b}; ${JSON.stringify(each)}, ${label}`);
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

/** 'auto' leaves a software adapter to those who ask for it, and takes the CPU. */
const automatic = {
  name: "models with device 'auto'",
  kind: 'all',
  thorough: true,
  async run() {
    const folder = new URL('/cases/models/bert/', location.href).href;
    const files = await Promise.all(
      ['config.json', 'model.safetensors'].map(async (file) => new File([await (await fetch(folder + file)).arrayBuffer()], file)),
    );
    const model = await openModel(files, { device: 'auto' });
    const { device } = model;
    await model.embed(ids);
    model.dispose();
    if (!/^(gpu: |cpu: .*computes on the CPU)/.test(device)) throw new Error(`device is ${device}`);
    return device;
  },
};

export const modelTests = [
  test(['gpt2'], {}, false),
  test(['llama3', 'bert', 'hunyuan', 'gemma3', 'phi3', 'olmo2', 'gpt_neox', 'gptj', 'bloom', 'cohere'], {}, true),
  test(['roberta', 'mpnet', 'electra', 'modernbert_classes', 'bert_classes', 'mistral_classes', 'albert', 'esm'], {}, true),
  ...['f16', 'bf16', 'int8', 'int4'].map((weights) => test(['llama3', 'gpt2'], { weights, embeddingWeights: weights }, true)),
  automatic,
];
