// The English models: their shapes and trainings, and the folder that holds one, in the names of Llama.
import { load, writeSafetensors } from '../../../bindings/dist/index_node.js';
import { rounder } from './packed.mjs';

/**
 * `pairs`: 436,704 parameters, byte pairs, for "Your own model". `words`: 98,496 parameters, whole words, attention without MLPs, for the
 * first screen of the page. `repeats`: the share of sequences that repeat their first part, so that a model learns to copy.
 * `roundedSteps`: in so many last steps, every pass sees the weights as the page's file rounds them.
 */
export const RECIPES = {
  pairs: {
    ...{ vocabulary: 2048, numLayers: 2, numHeads: 4, embedDim: 96, mlpDim: 288, context: 128, repeats: 0, roundedSteps: 0 },
    ...{ steps: 2800, batch: 16, learningRate: 5e-3, warmupSteps: 200, decaySteps: 1200, weightDecay: 0.1, seed: 1 },
  },
  words: {
    ...{ vocabulary: 1024, numLayers: 2, numHeads: 4, embedDim: 64, context: 64, repeats: 0.3, roundedSteps: 1800 },
    ...{ steps: 4000, batch: 32, learningRate: 6e-3, warmupSteps: 200, decaySteps: 2000, weightDecay: 0.1, seed: 1 },
  },
};

/** The learning rate rises for `warmupSteps`, and falls to 0 in the last `decaySteps`. */
export const rateAt = (step, { steps, learningRate, warmupSteps, decaySteps }) =>
  learningRate * Math.min(1, step / warmupSteps, (steps - step + 1) / decaySteps);

/** Numbers from 0 to 1 (mulberry32). */
export function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Windows that begin at `places`, and the token after each of their tokens. A window with a period repeats that many tokens. */
export function windows(ids, places, context, periods = []) {
  const tokens = new Int32Array(places.length * context);
  const targets = new Int32Array(places.length * context);
  places.forEach((place, row) => {
    const window = ids.slice(place, place + context + 1);
    const period = periods[row] ?? context + 1;
    for (let at = period; at <= context; at += 1) window[at] = window[at - period];
    tokens.set(window.subarray(0, context), row * context);
    targets.set(window.subarray(1), row * context);
  });
  return { tokens, targets, batch: places.length };
}

/** The mean loss on windows that are evenly spread over a text, in nats a token. */
export function lossOn(model, ids, context, most = 64) {
  const last = ids.length - context - 1;
  const count = Math.min(most, Math.max(1, Math.floor(last / context)));
  const places = Array.from({ length: count }, (_, i) => (count === 1 ? 0 : Math.floor((last * i) / (count - 1))));
  let sum = 0;
  for (const place of places) {
    const { tokens, targets } = windows(ids, [place], context);
    const { logits } = model.forward(tokens);
    const size = logits.shape.at(-1);
    targets.forEach((target, at) => {
      const row = logits.data.subarray(at * size, (at + 1) * size);
      const largest = row.reduce((a, b) => Math.max(a, b));
      sum += Math.log(row.reduce((total, logit) => total + Math.exp(logit - largest), 0)) + largest - row[target];
    });
    logits.dispose();
  }
  return sum / (count * context);
}

/** A model of a recipe's shape, without parameters. */
export const makeTransformer = (mh, { numLayers, numHeads, embedDim, mlpDim, vocabulary }) =>
  mh.transformer({
    ...{ numLayers, numHeads, embedDim, vocabSize: vocabulary, tiedOutput: true, bias: false, norm: 'rmsNorm', rope: { style: 'half' } },
    ...(mlpDim && { mlpDim, mlpBias: false, activation: 'silu', gated: true }),
  });

/**
 * Trains a model. Results are the same bits in every run with the same WebAssembly build.
 * @param {{ training: Int32Array, heldOut: Int32Array, recipe: typeof RECIPES.words,
 *   onProgress?: (progress: { step: number, loss: number, heldOut: number }) => void, every?: number }} options
 * @returns the model, and its exact weights if it has rounded ones
 */
export async function trainModel({ training, heldOut, recipe, onProgress = () => {}, every = 200 }) {
  const { steps, batch, seed, weightDecay, context, numLayers, repeats, roundedSteps } = recipe;
  const model = makeTransformer(await load(), recipe);
  // Scale the two products that each layer adds to the residual stream, so that their sum keeps its size (GPT-2's rule).
  model.initialize({ seed, residual: 1 / Math.sqrt(2 * numLayers) });
  const mh = await load();
  const trainer = mh.trainer(model, { weightDecay, beta2: 0.95, clipNorm: 1 });
  const next = random(seed);
  const rounding = rounder(model, trainer);
  let sum = 0;
  for (let step = 1; step <= steps; step += 1) {
    const places = Array.from({ length: batch }, () => Math.floor(next() * (training.length - context)));
    const periods = repeats === 0 ? [] : places.map(() => (next() < repeats ? 8 + Math.floor((next() * context) / 2) : undefined));
    const { tokens, targets } = windows(training, places, context, periods);
    trainer.setLearningRate(rateAt(step, recipe));
    const update = () => trainer.step(tokens, targets, { batch }).loss;
    sum += step > steps - roundedSteps ? rounding.around(update) : update();
    if (step % every !== 0 && step !== steps) continue;
    onProgress({ step, loss: sum / (((step - 1) % every) + 1), heldOut: lossOn(model, heldOut, context) });
    sum = 0;
  }
  const exact = roundedSteps > 0 ? rounding.finish() : undefined;
  trainer.dispose();
  return { model, exact };
}

/** config.json of a recipe's model. */
export const configOf = (recipe) => ({
  architectures: ['LlamaForCausalLM'],
  model_type: 'llama',
  vocab_size: recipe.vocabulary,
  hidden_size: recipe.embedDim,
  intermediate_size: recipe.mlpDim,
  num_hidden_layers: recipe.numLayers,
  num_attention_heads: recipe.numHeads,
  num_key_value_heads: recipe.numHeads,
  max_position_embeddings: recipe.context,
  hidden_act: 'silu',
  rms_norm_eps: 1e-5,
  rope_theta: 10000,
  attention_bias: false,
  mlp_bias: false,
  tie_word_embeddings: true,
  torch_dtype: 'float16',
});

/** model.safetensors in 16 bits, with Llama's names. */
export function weightsOf(model) {
  const dict = model.stateDict();
  const { embedDim, numLayers } = model.config;
  const tensors = { 'model.embed_tokens.weight': dict['embedding.weight'], 'model.norm.weight': dict['norm.weight'] };
  for (let layer = 0; layer < numLayers; layer += 1) {
    const of = (name) => dict[`layers.${layer}.${name}`];
    const to = `model.layers.${layer}.`;
    const packed = of('self_attn.in_proj_weight');
    ['q', 'k', 'v'].forEach((name, part) => {
      const data = packed.data.slice(part * embedDim ** 2, (part + 1) * embedDim ** 2);
      tensors[`${to}self_attn.${name}_proj.weight`] = { data, shape: [embedDim, embedDim] };
    });
    tensors[`${to}self_attn.o_proj.weight`] = of('self_attn.out_proj.weight');
    tensors[`${to}mlp.gate_proj.weight`] = of('linear_gate.weight');
    tensors[`${to}mlp.up_proj.weight`] = of('linear1.weight');
    tensors[`${to}mlp.down_proj.weight`] = of('linear2.weight');
    tensors[`${to}input_layernorm.weight`] = of('norm1.weight');
    tensors[`${to}post_attention_layernorm.weight`] = of('norm2.weight');
  }
  return writeSafetensors(tensors, { dtype: 'f16', metadata: { format: 'pt' } });
}
