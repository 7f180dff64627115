import { fileURLToPath } from 'node:url';
import { readSafetensors } from 'multihead';
import { openModel, type Model } from 'multihead/models';
import { describe, expect, it } from 'vitest';
import { bytePairTokenizer, goldenFiles, wordTokenizer } from '../../../tests/browser/small_models.mjs';
import type { Next } from '../../src/model/messages.js';
import { ModelSession } from '../../src/model/session.js';
import { convertedModel, ggufFile } from '../../../bindings/test/gguf_file.js';
import { given } from './given.js';

const words = ['the', ' black', ' cat', ' sat', ' on', ' the', ' mat', 'The', '.'];
const text = 'the black cat sat on the mat';
const ids = [0, 1, 2, 3, 4, 5, 6];
const tokenizer = bytePairTokenizer(words);

const opened = async (name: string, more: Record<string, string> = {}) => {
  const session = new ModelSession();
  const model = await session.open(given({ ...goldenFiles(name), ...more }), 'auto');
  return { session, model };
};
const plain = (name: string): Promise<Model> => openModel(given(goldenFiles(name)).files.map(({ file }) => file));

describe('a model that the visitor brought', () => {
  it.each(['gpt2', 'qwen3', 'gemma3', 'llama3', 'gpt_neox', 'bert', 'albert', 't5', 'mpnet'])(
    'shows the weights of every head of %s',
    async (name) => {
      const { session, model } = await opened(name);
      const { weights, labels, found } = await session.attend('5 6, 7\n8 9');
      const { numLayers, numHeads, causal } = model.info;
      expect([labels, found, model.readsText]).toEqual([['5', '6', '7', '8', '9'], 5, false]);
      expect(weights.shape).toEqual([numLayers, numHeads, 5, 5]);
      for (let row = 0; row < weights.data.length / 5; row += 1) {
        const values = weights.data.subarray(5 * row, 5 * row + 5);
        expect(values.reduce((a, b) => a + b)).toBeCloseTo(1, 5);
        if (causal) expect([...values.subarray((row % 5) + 1)].every((weight) => weight === 0)).toBe(true);
      }
      using direct = await plain(name);
      expect((await direct.attentions([5, 6, 7, 8, 9], { layer: 1, head: 0 })).data).toEqual(weights.data.slice(25 * numHeads, 25 * (numHeads + 1)));
      session.close();
    },
  );

  it('shows what a model with encoder and decoder writes, and where each new token looks', async () => {
    const { session, model } = await opened('marian');
    const { written, weights, labels } = await session.attend('5 6 7 8');
    using direct = await plain('marian');
    const { ids: chosen } = await direct.complete([5, 6, 7, 8], { maxNewTokens: 24, numBeams: 1 });
    expect([written, labels]).toEqual([chosen.map(String), ['5', '6', '7', '8']]);
    const decoderInput = [direct.info.decoderStart!, ...chosen.slice(0, -1)];
    expect(weights).toEqual(await direct.crossAttentions([5, 6, 7, 8], { decoderInput }));
    expect(weights.shape).toEqual([model.info.numLayers, model.info.numHeads, chosen.length, 4]);
    session.close();
  });

  it('reads text with the tokenizer of the folder', async () => {
    const { session, model } = await opened('gpt2', { 'tokenizer.json': tokenizer });
    expect(model.readsText).toBe(true);
    const { labels, ids: read } = await session.attend(text);
    expect(read).toEqual(ids);
    expect(labels).toEqual(['the', '·black', '·cat', '·sat', '·on', '·the', '·mat']);
    const long = await session.attend(`${'the'.repeat(70)}`);
    expect([long.ids.length, long.found]).toEqual([64, 70]);
    expect((await session.attend('')).labels).toEqual([]);
    session.close();
  });

  it('takes a GGUF file with its tokenizer', async () => {
    const { settings, tensors } = convertedModel(fileURLToPath(new URL('../../../tests/conformance/models/qwen3', import.meta.url)));
    const { vocab, merges } = (JSON.parse(tokenizer) as { model: { vocab: Record<string, number>; merges: string[] } }).model;
    const own = { model: 'gpt2', pre: 'gpt-2', tokens: Object.keys(vocab), merges };
    const session = new ModelSession();
    const file = (change: object = {}) => {
      const lists = Object.entries({ ...own, ...change }).map(([name, value]) => [`tokenizer.ggml.${name}`, value]);
      return given({ 'tiny.gguf': ggufFile({ ...settings, ...Object.fromEntries(lists) }, tensors) });
    };
    const opened = await session.open(file(), 'auto');
    expect([opened.readsText, opened.info.modelType]).toEqual([true, 'qwen3']);
    expect(opened.noSteps).toContain('GGUF');
    const { labels, weights } = await session.attend(text);
    expect(labels).toEqual(['the', '·black', '·cat', '·sat', '·on', '·the', '·mat']);
    expect(weights.data.every((weight) => weight >= 0 && weight <= 1)).toBe(true);
    const plainIds = await session.open(file({ model: 'rwkv' }), 'auto');
    expect(plainIds.readsText).toBe(false);
    expect((await session.attend('1 2')).ids).toEqual([1, 2]);
    session.close();
  });

  it('says what a model without a tokenizer reads', async () => {
    const { session } = await opened('gpt2');
    await expect(session.attend(text)).rejects.toThrow(/^Without tokenizer\.json this model reads numbers of tokens, such as 5 17 9/);
    await expect(session.attend('1 2 120')).rejects.toThrow('This model knows the tokens from 0 to 119, not 120.');
    expect((await session.attend('1 2')).ids).toEqual([1, 2]);
    session.close();
  });

  it('continues a text, with the five likeliest tokens at each step', async () => {
    const { session } = await opened('gpt2', { 'tokenizer.json': tokenizer });
    const steps: Next[] = [];
    for (let next = await session.start(text); next; next = await session.next()) steps.push(next);
    expect(steps.length).toBeGreaterThan(1);
    using direct = await plain('gpt2');
    const { data } = await direct.logits(ids);
    const total = data.reduce((sum, value) => sum + Math.exp(value), 0);
    const sorted = [...data].sort((a, b) => b - a).map((value) => Math.exp(value) / total);
    const shares = steps[0]!.likeliest.map(({ share }) => share);
    expect(shares.length).toBe(5);
    shares.forEach((share, i) => expect(share).toBeCloseTo(sorted[i]!, 6));
    // A second start ends the first one.
    await session.start(text);
    expect((await session.start(text))!.likeliest).toEqual(steps[0]!.likeliest);
    await expect(session.start('')).rejects.toThrow('There is no text to continue.');
    session.close();
  });

  it('shows the bytes of a token that is a part of a character', async () => {
    // 120 bytes above 127, as byte-level BPE spells them.
    const from = (code: number, count: number): string[] => Array.from({ length: count }, (_, i) => String.fromCodePoint(code + i));
    const bytes = [...from(0x122, 26), ...from(0xa1, 12), ...from(0xae, 82)];
    const { session } = await opened('gpt2', { 'tokenizer.json': bytePairTokenizer(bytes, 120) });
    expect((await session.attend('é')).labels).toEqual(['⟨C3⟩', '⟨A9⟩']);
    for (const { label } of (await session.start('é'))!.likeliest) expect(label).toMatch(/^⟨[89A-F][\dA-F]⟩$/);
    session.close();
  });

  it('compares sentences', async () => {
    const { session } = await opened('bert', { 'tokenizer.json': wordTokenizer(['the', 'black', 'cat', 'sat', 'dog']) });
    const { shape, data } = await session.compare(['the cat', 'the black dog sat', 'the cat']);
    expect(shape).toEqual([3, 3]);
    for (const [i, j] of [
      [0, 0],
      [1, 1],
      [0, 2],
    ] as const)
      expect(data[3 * i + j]).toBeCloseTo(1, 5);
    expect(data[1]).toBeCloseTo(data[3]!, 6);
    using direct = await plain('bert');
    const [a, b] = await direct.embed([
      [2, 4, 6, 3],
      [2, 4, 5, 8, 7, 3],
    ]);
    expect(data[1]).toBeCloseTo(
      a!.reduce((sum, value, i) => sum + value * b![i]!, 0),
      5,
    );
    session.close();
  });

  it('looks at a picture as its preprocessor says, and names its likeliest classes', async () => {
    const data = Uint8ClampedArray.from({ length: 4 * 20 * 15 }, (_, i) => (37 * i) % 256);
    const image = { data, width: 20, height: 15 };
    const { session, model } = await opened('vit');
    const { imageSize, patchSize, numLayers, numHeads } = model.info;
    const { side, labels, weights, classes } = await session.look(image);
    expect(side).toBe(imageSize / patchSize);
    const tokens = side ** 2 + 1;
    expect(weights.shape).toEqual([numLayers, numHeads, tokens, tokens]);
    expect(labels.slice(0, 5)).toEqual(['[class]', 'patch 1, 1', 'patch 1, 2', 'patch 1, 3', 'patch 2, 1']);
    // Without the file, as ViT's processor: both sides resized, from −1 to 1.
    const file = JSON.stringify({ image_processor_type: 'ViTImageProcessor', size: { height: imageSize, width: imageSize } });
    using direct = await openModel(given({ ...goldenFiles('vit'), 'preprocessor_config.json': file }).files.map((each) => each.file));
    const one = await direct.attentions([], { image, layer: 1, head: 1 });
    expect(weights.data.slice(-(tokens ** 2))).toEqual(one.data);
    const { data: logits } = await direct.logits([], { image });
    const sum = logits.reduce((total, value) => total + Math.exp(value), 0);
    expect(classes.map(({ label }) => label).sort()).toEqual(['LABEL_0', 'LABEL_1', 'LABEL_2', 'LABEL_3']);
    for (const { label, share } of classes) expect(share).toBeCloseTo(Math.exp(logits[Number(label.at(-1))]!) / sum, 6);
    session.close();
  });

  it('names registers, and refuses models without a class token', async () => {
    const image = { data: new Uint8ClampedArray(3 * 64 * 64), width: 64, height: 64 };
    const { session } = await opened('dinov2_classes');
    const { labels, side } = await session.look(image);
    expect(labels[0]).toBe('[class]');
    expect(labels[1]).toBe('register 1');
    expect(labels[labels.length - side ** 2]).toBe('patch 1, 1');
    session.close();
    const { session: other } = await opened('siglip_vision');
    await expect(other.look(image)).rejects.toThrow('a class token');
    other.close();
  });

  it('names the likeliest classes of a text', async () => {
    const { session } = await opened('bert_classes');
    const { classes } = await session.attend('5 6 7');
    expect(classes.length).toBeGreaterThan(1);
    expect(classes.reduce((sum, { share }) => sum + share, 0)).toBeCloseTo(1, 5);
    session.close();
  });

  it('says so if the weights are not numbers', async () => {
    const files = goldenFiles('gpt2');
    const weights = Uint8Array.from(files['model.safetensors']!);
    (readSafetensors(weights).tensors['transformer.h.1.ln_1.weight']!.data as Float32Array).fill(NaN);
    const session = new ModelSession();
    await session.open(given({ ...files, 'model.safetensors': weights }), 'auto');
    await expect(session.attend('1 2 3')).rejects.toThrow('From layer 2 on this model computes no numbers (NaN): its file is damaged.');
    session.close();
  });

  it('keeps the old model if the files are none, or if it is stopped', async () => {
    const { session } = await opened('gpt2');
    const before = await session.attend('1 2 3');
    await expect(session.open(given({ ...goldenFiles('llama3'), 'config.json': '{' }), 'auto')).rejects.toThrow();
    const aborter = new AbortController();
    const stopped = session.open(given(goldenFiles('llama3')), 'auto', { signal: aborter.signal, onProgress: () => aborter.abort() });
    await expect(stopped).rejects.toThrow(/aborted/);
    expect((await session.attend('1 2 3')).weights).toEqual(before.weights);
    session.close();
    await expect(session.attend('1')).rejects.toThrow('No model is open.');
  });

  it('opens a model for a GPU on the processor where there is none, and says so', async () => {
    const session = new ModelSession();
    expect(session.place()).toBe(undefined);
    await session.open(given(goldenFiles('gpt2')), 'auto', { device: 'gpu' });
    const why = 'This browser offers pages no GPU, so the model computes on the processor.';
    expect(session.place()).toEqual({ where: '1 thread', why, refusal: why });
    expect((await session.attend('1 2 3')).labels).toEqual(['1', '2', '3']);
    expect(await session.leaveGpu({ code: 'E_GPU_LOST', message: '' })).toBe(false);
    await session.open(given(goldenFiles('gpt2')), 'auto', { device: 'cpu' });
    expect(session.place()).toEqual({ where: '1 thread', why: '', refusal: '' });
    const broken = session.open(given({ 'config.json': '{}', 'model.safetensors': '' }), 'auto', { device: 'gpu' });
    await expect(broken).rejects.toMatchObject({ code: expect.stringMatching(/E_FORMAT|E_OPTION|E_GPU/) });
    session.close();
  });

  it('keeps weights in the chosen type, and reports how much is read', async () => {
    const session = new ModelSession();
    const files = given(goldenFiles('gpt2'));
    const seen: [number, number][] = [];
    const stored = await session.open(files, 'auto', { onProgress: (...both) => seen.push(both) });
    expect(seen.at(-1)![0]).toBe(seen.at(-1)![1]);
    const small = await session.open(files, 'int4');
    expect([stored.weights, small.weights]).toEqual([undefined, 'int4']);
    expect(small.info.weightBytes).toBeLessThan(stored.info.weightBytes);
    session.close();
  });
});
