import { load, type Multihead } from 'multihead';
import { beforeAll, describe, expect, it } from 'vitest';
import { bytePairTokenizer, goldenFiles } from '../../../tests/browser/small_models.mjs';
import { unbent } from '../../src/attention/bend.js';
import { createForward } from '../../src/attention/forward.js';
import { colorOf } from '../../src/attention/patterns.js';
import { ModelSession } from '../../src/model/session.js';
import { given } from './given.js';

let mh: Multihead;
beforeAll(async () => {
  mh = await load();
});

/** A golden model with another config.json. */
function changed(name: string, change: Record<string, unknown>) {
  const files = goldenFiles(name);
  const config = JSON.parse(Buffer.from(files['config.json']!).toString()) as Record<string, unknown>;
  return { ...files, 'config.json': JSON.stringify({ ...config, ...change }) };
}
const usualRope = { rope_parameters: { rope_theta: 10000, rope_type: 'default' } };
const text = '5 6 7 8 9 1 2';

describe('the heads of a layer of a model', () => {
  it.each([
    ['gpt2', { scale_attn_by_inverse_layer_idx: false }],
    ['llama3', usualRope],
    ['mistral', { sliding_window: null }],
    ['qwen2', { use_sliding_window: false, layer_types: ['full_attention', 'full_attention', 'full_attention'] }],
  ])('have in the page’s pass the weights that %s has', async (name, change) => {
    const session = new ModelSession();
    const { info, noSteps } = await session.open(given(changed(name, change)), 'f32');
    expect(noSteps).toBe('');
    const { weights } = await session.attend(text);
    for (let layer = 0; layer < info.numLayers; layer += 1) {
      const read = await session.heads(text, layer);
      expect([read.tokens.join(' '), read.layer, read.layers]).toEqual([text, layer, info.numLayers]);
      const heads = Array.from({ length: info.numHeads }, (_, head) => colorOf(head));
      const from = { ...read, key: `${layer}`, names: heads, line: '' };
      const { trace } = createForward(mh)({ given: from, heads, tokens: read.tokens, causal: true, bend: unbent });
      const size = info.numHeads * 7 * 7;
      const wanted = weights.data.subarray(layer * size, (layer + 1) * size);
      const furthest = wanted.reduce((most, value, i) => Math.max(most, Math.abs(value - trace.weights.data[i]!)), 0);
      expect(furthest, `layer ${layer + 1}`).toBeLessThan(1e-5);
    }
    // A layer that there is not is the last.
    expect((await session.heads(text, 200)).layer).toBe(info.numLayers - 1);
    await expect(session.heads('', 0)).rejects.toThrow('There is no text for the model');
    session.close();
  });

  it('read words with the tokenizer of the folder', async () => {
    const session = new ModelSession();
    const tokenizer = bytePairTokenizer(['the', ' cat', ' sat']);
    await session.open(given({ ...changed('gpt2', { scale_attn_by_inverse_layer_idx: false }), 'tokenizer.json': tokenizer }), 'auto');
    const { tokens, next } = await session.heads('the cat sat', 1);
    expect(tokens).toEqual(['the', '·cat', '·sat']);
    // The bars of the first screen are the same for every layer. Each says which text it adds.
    const { likeliest } = (await session.start('the cat sat'))!;
    expect(next!.words.map(({ word }) => word)).toEqual(likeliest.map(({ label }) => label));
    next!.words.forEach(({ share }, i) => expect(share).toBeCloseTo(likeliest[i]!.share, 6));
    for (const { word, written } of next!.words) expect(['', word.replace('·', ' ')]).toContain(written);
    expect((await session.heads('the cat sat'.repeat(40), 1)).next).toBeUndefined();
    session.close();
  });

  it.each([
    ['gpt2', {}, /^This model changes its scores or positions in a way that the steps do not show$/],
    ['llama3', {}, /^This model changes/],
    ['mistral', {}, /^This model changes/],
    ['bert', {}, /^A model of the type bert shows its heads in “Your own model” only; the steps follow GPT-2, Llama, Mistral and Qwen2$/],
    ['vit', {}, /^A model of pictures shows/],
  ])('are not given where the page would compute other numbers: %s', async (name, change, problem) => {
    const session = new ModelSession();
    const { noSteps } = await session.open(given(changed(name, change)), 'auto');
    expect(noSteps).toMatch(problem);
    await expect(session.heads(text, 0)).rejects.toThrow(problem);
    session.close();
  });
});
