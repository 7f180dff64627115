// The parts of multihead/models: which files a model and a call load, what happens without them, and workers.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type ModelFile, openModel, type OpenModelOptions, saveModel } from 'multihead/models';
import { describe, expect, it } from 'vitest';
import { type PartName, partNames } from '../src/generated/parts.ts';
import { createOpenModel } from '../src/models/open.ts';
import { builds } from './builds.ts';
import { convertedModel, ggufFile } from './gguf_file.ts';
import { goldens } from './tokenizer_files.ts';

const ids = [5, 9, 30, 31, 12, 7];
const fileOf = (build: string): URL => new URL(`../dist/multihead-${build}.wasm`, import.meta.url);
const folder = (name: string): string => join(goldens, name);

/** An openModel() with an instance of its own, and the parts that it has asked for so far. */
function opener(missing: readonly PartName[] = []) {
  const asked: PartName[] = [];
  const open = createOpenModel(
    () => ({
      relaxed: () => fileOf('models-relaxed'),
      simd128: () => fileOf('models-simd128'),
      part: (part, simd) => {
        asked.push(part);
        return fileOf(missing.includes(part) ? 'nothing' : `${part}-${simd}`);
      },
    }),
    { make: () => undefined },
  );
  return { open, asked };
}

const gguf = (name: string): Blob => {
  const { settings, tensors } = convertedModel(folder(name));
  return new Blob([ggufFile(settings, tensors)]);
};

describe.each(builds)('%s', (simd) => {
  it.each(['bert', 'esm', 'modernbert', 'embeddinggemma', 'jina_v2', 'mpnet', 't5', 'deberta_v3'])('%s', async (name) => {
    const { open, asked } = opener();
    using model = await open(folder(name), { simd });
    const biases = ['mpnet', 't5', 'deberta_v3'].includes(name) ? ['inspection'] : [];
    expect(asked).toEqual(biases);
    await model.forward(ids);
    await model.forward([5]);
    if (model.info.output !== 'none') await model.logits(ids);
    expect(asked).toEqual(biases);
    const long = Int32Array.from({ length: Math.min(model.info.maxTokens || 90, 90) }, (_, at) => 3 + (at % 20));
    const [short] = await model.embed([ids.slice(0, 3), long, ids]);
    const [alone] = await model.embed([ids.slice(0, 3)]);
    for (const [at, value] of short?.entries() ?? []) expect(value).toBeCloseTo(alone?.[at] as number, 5);
    expect(asked).toEqual([...biases, 'pooling']);
  });

  it.each(['bert_classes', 'mistral_classes', 'bert'])('%s pools', async (name) => {
    const { open, asked } = opener();
    using model = await open(folder(name), { simd });
    const first = [...asked];
    expect(first).not.toContain('pooling');
    if (name.endsWith('classes')) expect((await model.logits(ids)).data).toHaveLength(model.info.numLabels);
    else expect((await model.forward(ids, { return: ['poolerOutput'] })).poolerOutput.data).toHaveLength(model.info.embedDim);
    expect(asked).toEqual([...first, 'pooling']);
  });

  it.each(['dinov2_classes', 'clip', 'siglip'])('images of %s', async (name) => {
    const { open, asked } = opener();
    using model = await open(folder(name), { simd });
    const side = 64;
    const [vector] = await model.embedImages([{ width: side, height: side, data: new Uint8Array(3 * side * side).fill(90) }]);
    expect(vector?.every(Number.isFinite)).toBe(true);
    expect(asked).toEqual(['pooling']);
  });

  it.each(['gpt2', 'llama3', 'gemma3', 'bloom', 't5_seq2seq', 'bart', 'marian'])('%s loads with calls what they need', async (name) => {
    const { open, asked } = opener();
    using model = await open(folder(name), { simd });
    await model.logits(ids);
    const first = name === 't5_seq2seq' ? ['inspection'] : [];
    expect(asked).toEqual(first);
    const greedy = await model.complete(ids, { maxNewTokens: 5, stop: [] });
    expect(asked).toEqual([...first, 'generation']);
    expect((await model.complete(ids, { maxNewTokens: 5, cacheType: 'f16' })).ids).toHaveLength(greedy.ids.length);
    await model.complete(ids, { maxNewTokens: 5, cacheType: 'int8' });
    expect(asked).toEqual([...first, 'generation', 'caches']);
    await model.complete(ids, { maxNewTokens: 5, numBeams: 2 });
    expect(asked).toEqual([...first, 'generation', 'caches', 'beams']);
    await model.complete(ids, { maxNewTokens: 2, edits: [{ site: 'resid_pre', layer: 0, scale: 1 }] });
    await model.attentions(ids);
    expect(new Set(asked)).toEqual(new Set([...first, 'generation', 'caches', 'beams', 'inspection']));
    expect(asked).toHaveLength(new Set(asked).size);
    expect((await model.complete(ids, { maxNewTokens: 5 })).ids).toEqual(greedy.ids);
  });

  it('hidden states, captures and analyses load what they need', async () => {
    for (const call of ['forward', 'run', 'lens', 'gradients', 'trainer'] as const) {
      const { open, asked } = opener();
      using model = await open(folder('gpt2'), { simd });
      if (call === 'forward') await model.forward(ids, { return: ['hiddenStates'] });
      if (call === 'run') await model.run(ids, { capture: [{ site: 'z', layer: 0 }] });
      if (call === 'lens') await model.lens(ids);
      if (call === 'gradients') await model.gradients(ids, { token: 1, against: 2 }, [{ site: 'z', layer: 0 }]);
      if (call === 'trainer') {
        using trainer = await model.trainer();
        const { tokens, targets, batch } = await trainer.batchOf([ids]);
        trainer.step(tokens, targets, { batch });
      }
      const needed = ['forward', 'run'].includes(call) ? ['inspection'] : ['analyses', 'inspection'];
      expect(asked, call).toEqual(needed);
    }
  });

  it('weights and files load what they need', async () => {
    const loaded = async (source: Parameters<typeof openModel>[0], options: OpenModelOptions = {}) => {
      const { open, asked } = opener();
      using model = await open(source, { simd, ...options });
      expect((await model.forward(ids)).lastHiddenState?.data.every(Number.isFinite) ?? true).toBe(true);
      return asked;
    };
    expect(await loaded(folder('bert'))).toEqual([]);
    expect(await loaded(folder('bert'), { weights: 'f16' })).toEqual([]);
    expect(await loaded(folder('bert'), { weights: 'bf16' })).toEqual([]);
    expect(await loaded(folder('bert'), { weights: 'int8' })).toEqual(['quantized']);
    expect(await loaded(folder('bert'), { embeddingWeights: 'int4' })).toEqual(['quantized']);
    expect(await loaded(gguf('llama3'))).toEqual(['formats', 'quantized']);
    expect(await loaded(gguf('llama3'), { weights: 'int4' })).toEqual(['formats', 'quantized']);
    using small = await openModel(folder('bert'), { simd, weights: 'int8' });
    const saved: readonly ModelFile[] = saveModel(small, { dtype: 'asInMemory' });
    expect(await loaded(saved)).toEqual(['formats', 'quantized']);
    expect(await loaded(saved, { weights: 'f32' })).toEqual(['formats', 'quantized']);
  });

  it('without a part, its calls are refused, and the others work', async () => {
    const refused = (part: PartName) => ({ code: 'E_LOAD', argument: `parts.${part}`, message: expect.stringContaining('nothing') as string });
    const { open } = opener(['generation', 'formats', 'quantized', 'pooling']);
    using text = await open(folder('gpt2'), { simd });
    await expect(text.complete(ids)).rejects.toMatchObject(refused('generation'));
    await expect(text.prefix(ids)).rejects.toMatchObject(refused('generation'));
    await expect(text.embed(ids)).rejects.toMatchObject(refused('pooling'));
    await expect(open(gguf('llama3'), { simd })).rejects.toMatchObject(refused('formats'));
    await expect(open(folder('bert'), { simd, weights: 'int8' })).rejects.toMatchObject(refused('quantized'));
    using bert = await open(folder('bert'), { simd });
    expect((await bert.forward(ids, { return: ['lastHiddenState'] })).lastHiddenState.shape).toEqual([ids.length, bert.info.embedDim]);

    const { open: openLess, asked } = opener(['caches', 'beams', 'inspection', 'analyses']);
    using model = await openLess(folder('gpt2'), { simd });
    await expect(model.complete(ids, { cacheType: 'bf16' })).rejects.toMatchObject(refused('caches'));
    await expect(model.prefix(ids, { cacheType: 'int8' })).rejects.toMatchObject(refused('caches'));
    await expect(model.complete(ids, { numBeams: 2 })).rejects.toMatchObject(refused('beams'));
    await expect(model.attentions(ids)).rejects.toMatchObject(refused('inspection'));
    await expect(model.trainer()).rejects.toMatchObject({ code: 'E_LOAD' });
    // A part that failed is asked for again.
    await expect(model.complete(ids, { numBeams: 2 })).rejects.toMatchObject(refused('beams'));
    expect(asked.filter((part) => part === 'beams')).toHaveLength(2);
    expect((await model.complete(ids, { maxNewTokens: 3 })).ids).toHaveLength(3);
  });

  it('workers get the same parts, from the addresses of the caller', async () => {
    const own = Object.fromEntries(partNames.map((part) => [part, readFileSync(fileOf(`${part}-${simd}`))]));
    const options = [{}, { cacheType: 'int8' }, { numBeams: 3 }, { edits: [{ site: 'resid_mid', layer: 1, scale: 1.5 }] }] as const;
    for (const source of [folder('llama3'), folder('t5_seq2seq'), gguf('llama3')]) {
      using here = await openModel(source, { simd, weights: 'int8' });
      using there = await openModel(source, { simd, weights: 'int8', workers: 2, parts: own });
      expect(there.workers).toBe(2);
      for (const each of options)
        expect((await there.complete(ids, { maxNewTokens: 6, ...each })).ids).toEqual((await here.complete(ids, { maxNewTokens: 6, ...each })).ids);
      expect((await there.attentions(ids)).data).toEqual((await here.attentions(ids)).data);
    }
    await expect(openModel(folder('llama3'), { simd, workers: 1, parts: { team: fileOf('nothing') } })).rejects.toMatchObject({
      ...{ code: 'E_LOAD', argument: 'parts.team' },
    });
    await expect(openModel(folder('llama3'), { simd, parts: { beams: 7 as never } })).rejects.toMatchObject({
      code: 'E_OPTION',
      argument: 'parts.beams',
    });
    await expect(openModel(folder('llama3'), { simd, parts: { beam: fileOf('nothing') } as never })).rejects.toMatchObject({
      code: 'E_OPTION',
      argument: 'beam',
    });
  });
});
