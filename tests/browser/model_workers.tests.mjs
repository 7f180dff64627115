// Models of multihead/models in workers of a browser: a team with shared memory, one worker without, and none.

import assert from 'node:assert/strict';
import { lostWorkers } from './harness.mjs';
import { isolated, onPackagePage } from './package_page.mjs';

/** Runs in the page: compares a random model in workers with one on the page's thread. */
async function compare() {
  const { openModel } = await import('/models.js');
  const { writeSafetensors } = await import('/index.js');
  const [width, mlp, vocabulary] = [256, 384, 1900];
  const shapes = { 'model.embed_tokens.weight': [vocabulary, width], 'model.norm.weight': [width] };
  for (const layer of [0, 1]) {
    const matrices = { q_proj: [width, width], k_proj: [width / 2, width], v_proj: [width / 2, width], o_proj: [width, width] };
    for (const [name, shape] of Object.entries(matrices)) shapes[`model.layers.${layer}.self_attn.${name}.weight`] = shape;
    for (const name of ['gate', 'up']) shapes[`model.layers.${layer}.mlp.${name}_proj.weight`] = [mlp, width];
    shapes[`model.layers.${layer}.mlp.down_proj.weight`] = [width, mlp];
    for (const name of ['input', 'post_attention']) shapes[`model.layers.${layer}.${name}_layernorm.weight`] = [width];
  }
  const tensors = Object.entries(shapes).map(([name, shape], seed) => {
    const count = shape.reduce((product, extent) => product * extent, 1);
    const data = Float32Array.from({ length: count }, (_, at) => (shape.length === 1 ? 1 : 0.2 * Math.sin((at + 1) * (12.9898 + seed))));
    return [name, { shape, data }];
  });
  const config = {
    ...{ model_type: 'llama', architectures: ['LlamaForCausalLM'], hidden_size: width, intermediate_size: mlp, vocab_size: vocabulary },
    ...{ num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 64, rms_norm_eps: 1e-5 },
    ...{ rope_theta: 10000, hidden_act: 'silu', tie_word_embeddings: true },
  };
  const files = [new File([JSON.stringify(config)], 'config.json'), new File([writeSafetensors(Object.fromEntries(tensors))], 'model.safetensors')];
  const one = await openModel(files, { weights: 'int8' });
  const seen = [];
  const model = await openModel(files, { weights: 'int8', workers: 2, onProgress: (loaded, total) => seen.push(loaded / total) });
  const ids = Int32Array.from({ length: 20 }, (_, at) => at * 31);
  const tokens = async (of) => {
    const found = [];
    for await (const { token } of of.generate(ids, { maxNewTokens: 8, temperature: 1, seed: 3 })) found.push(token);
    return found;
  };
  const same = (a, b) => a.length === b.length && a.every((value, at) => value === b[at]);
  const [wanted, got] = await Promise.all([one, model].map((of) => of.logits(ids, { positions: 'all' })));
  const generated = await tokens(model);
  const refused = await model.logits([vocabulary]).catch((error) => error.code);
  const { workers } = model;
  const busy = model.embed([ids]).catch((error) => error.code);
  model.dispose();
  return {
    ...{ workers, refused, generated: generated.length, progress: [seen.at(0), seen.at(-1)] },
    logits: same(wanted.data, got.data),
    tokens: same(generated, await tokens(one)),
    // On the page's thread a pass has its result before dispose().
    disposed: workers === 0 || (await busy) === 'E_DISPOSED',
  };
}

const exact = { refused: 'E_OPTION', generated: 8, progress: [0, 1], logits: true, tokens: true, disposed: true };

export const tests = [
  {
    name: 'a model in workers has the bits of one thread, in one worker on any page',
    browserBug: lostWorkers,
    essential: true,
    async run({ browser }) {
      assert.deepEqual(await onPackagePage(browser, {}, compare), { workers: 1, ...exact });
    },
  },
  {
    name: 'workers divide a model on a cross-origin isolated page',
    browserBug: lostWorkers,
    essential: true,
    async run({ browser, kind }) {
      const { workers, ...rest } = await onPackagePage(browser, isolated, compare);
      assert.deepEqual(rest, exact);
      // WebKitGTK 2.50 has no SharedArrayBuffer; Safari has.
      assert.ok(workers === 2 || (kind === 'webkit' && workers === 1), `${workers} workers`);
    },
  },
  {
    name: 'a model lives on the calling thread where a policy forbids workers',
    async run({ browser }) {
      const scripts = "script-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval'";
      const policy = `default-src 'self'; ${scripts}; worker-src 'none'`;
      assert.deepEqual(await onPackagePage(browser, { 'content-security-policy': policy }, compare), { workers: 0, ...exact });
    },
  },
];
