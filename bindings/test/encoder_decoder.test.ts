// Encoder–decoder models: the encoder as a model, cross-attention, generation by rules and with beams. The numbers of
// transformers are golden cases.

import { readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { readSafetensors, type SafetensorsTensor } from 'multihead';
import { type Model, openModel, type Site, saveModel } from 'multihead/models';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { builds, rejectionOf } from './builds.ts';
import { folderWithTokenizer, goldens } from './tokenizer_files.ts';

const source = [5, 9, 30, 41, 12, 7];
const target = [0, 20, 33, 8];

const crossSites = [...['cross_q', 'cross_k', 'cross_v', 'cross_scores', 'cross_pattern', 'cross_z', 'cross_attn_out', 'resid_mid_cross']] as Site[];

describe.each(builds)('an encoder–decoder model (%s)', (simd) => {
  let model: Model;
  beforeAll(async () => {
    model = await openModel(join(goldens, 't5_seq2seq'), { simd });
  });
  afterAll(() => model.dispose());

  it('has an encoder that is a model by itself', async () => {
    const { info, encoder } = model;
    expect(info).toMatchObject({ modelType: 't5', output: 'languageModel', causal: true, numLayers: 3, decoderStart: 0, endIds: [1] });
    expect(info.encoder).toMatchObject({ output: 'none', causal: false, numLayers: 2, numHeads: 2, encoder: undefined, decoderStart: undefined });
    expect(encoder?.info).toBe(info.encoder);
    expect(encoder?.encoder).toBe(undefined);
    const { encoderLastHiddenState } = await model.forward(source, { return: ['encoderLastHiddenState'] });
    const alone = await encoder?.forward(source);
    expect(alone?.lastHiddenState).toEqual(encoderLastHiddenState);
    expect(encoderLastHiddenState.shape).toEqual([6, 24]);
    expect((await encoder?.attentions(source, { layer: 1 }))?.shape).toEqual([2, 6, 6]);
    expect(await encoder?.embed(source)).toHaveLength(24);
    await expect(encoder?.complete(source)).rejects.toMatchObject({ code: 'E_OPTION', argument: 'model' });
  });

  it('gives the weights of cross-attention', async () => {
    const all = await model.crossAttentions(source, { decoderInput: target });
    expect(all.shape).toEqual([3, 2, 4, 6]);
    const one = await model.crossAttentions(source, { decoderInput: target, layer: 2, head: 1 });
    expect(one.shape).toEqual([4, 6]);
    expect(one.data).toEqual(all.data.slice(-24));
    const row = [...one.data.subarray(0, 6)].reduce((sum, weight) => sum + weight, 0);
    expect(row).toBeCloseTo(1, 5);
    const own = await model.attentions(source, { decoderInput: target });
    expect(own.shape).toEqual([3, 2, 4, 4]);
    // Without the option, the decoder has its first token.
    expect((await model.crossAttentions(source, { layer: 0 })).shape).toEqual([2, 1, 6]);
  });

  it('reads and changes the values of cross-attention', async () => {
    const capture = crossSites.map((site) => ({ site, layer: 1 }));
    const { captures, logits } = await model.run(source, { decoderInput: target, capture });
    const shapes = [
      [4, 2, 10],
      [6, 2, 10],
      [6, 2, 10],
      [2, 4, 6],
      [2, 4, 6],
      [4, 2, 10],
      [4, 24],
      [4, 24],
    ];
    expect(captures.map(({ shape }) => shape)).toEqual(shapes);
    const pattern = await model.crossAttentions(source, { decoderInput: target, layer: 1 });
    expect(captures[4]?.data).toEqual(pattern.data);
    for (const [at, place] of capture.entries()) {
      const same = await model.run(source, { decoderInput: target, edits: [{ ...place, replace: captures[at] as never }] });
      const changed = await model.run(source, { decoderInput: target, edits: [{ ...place, scale: 0.5 }] });
      for (const [i, logit] of (logits as never as { data: Float32Array }).data.entries()) {
        expect(same.logits?.data[i], place.site).toBeCloseTo(logit, 3);
      }
      expect(changed.logits, place.site).not.toEqual(logits);
    }
    // Positions of keys are the encoder's.
    const edits = [{ site: 'cross_k' as const, layer: 0, tokens: [5], set: 0 }];
    expect((await model.run(source, { decoderInput: target, edits })).logits).not.toEqual(logits);
    const beyond = [{ site: 'cross_z' as const, layer: 0, tokens: [5], set: 0 }];
    await expect(model.run(source, { decoderInput: target, edits: beyond })).rejects.toMatchObject({ argument: 'edits[0].tokens' });
  });

  it('changes values of the encoder', async () => {
    const encoderEdits = [{ site: 'resid_post' as const, layer: 1, tokens: [2], scale: -1 }];
    const { encoderLastHiddenState, logits } = await model.forward(source, { encoderEdits, return: ['encoderLastHiddenState', 'logits'] });
    const alone = await model.encoder?.run(source, { edits: encoderEdits });
    expect(alone?.lastHiddenState).toEqual(encoderLastHiddenState);
    expect(logits).not.toEqual((await model.forward(source)).logits);
    const plain = await model.complete(source, { maxNewTokens: 5 });
    expect((await model.complete(source, { maxNewTokens: 5, encoderEdits })).ids).not.toEqual(plain.ids);
    const wrong = [{ site: 'cross_q' as const, layer: 0, scale: 1 }];
    expect((await rejectionOf(model.forward(source, { encoderEdits: wrong }))).argument).toBe('encoderEdits[0].site');
    const infinite = [{ site: 'resid_pre', layer: 0, set: 1e30 } as const, { site: 'resid_pre', layer: 0, scale: 1e30 } as const];
    for (const call of [model.run(source, { encoderEdits: infinite }), model.complete(source, { encoderEdits: infinite })])
      expect((await rejectionOf(call)).argument).toBe('encoderEdits');
    expect((await rejectionOf(model.run(source, { edits: infinite }))).argument).toBe('edits');
    const beyond = [{ site: 'q' as const, layer: 0, tokens: [6], scale: 1 }];
    await expect(model.forward(source, { encoderEdits: beyond })).rejects.toMatchObject({ argument: 'encoderEdits[0].tokens' });
  });

  it('writes a text that ends, greedily, by drawing and with beams', async () => {
    const { ids, finishReason } = await model.complete(source, { maxNewTokens: 6 });
    expect(ids.length).toBeLessThanOrEqual(6);
    expect(finishReason).toBe(ids.at(-1) === 1 ? 'stop' : 'length');
    expect((await model.complete(source, { maxNewTokens: 6, temperature: 1, topK: 1 })).ids).toEqual(ids);
    const drawn = await model.complete(source, { maxNewTokens: 6, temperature: 2, seed: 3 });
    expect(drawn.ids).not.toEqual(ids);
    // What was written continues in the same way.
    const [first, ...rest] = ids;
    const decoderInput = Int32Array.of(0, first as number);
    expect((await model.complete(source, { maxNewTokens: 5, decoderInput })).ids).toEqual(rest);
    const searched = await model.complete(source, { maxNewTokens: 6, numBeams: 4, lengthPenalty: 0.5, earlyStopping: 'never' });
    expect(searched.ids.length).toBeGreaterThan(0);
    expect((await model.complete(source, { maxNewTokens: 0, numBeams: 4 })).ids).toEqual([]);
    const steps = [];
    for await (const step of model.generate(source, { maxNewTokens: 3, topTokens: 2 })) steps.push(step.topTokens.length);
    expect(steps).toEqual([2, 2, 2].slice(0, steps.length));
  });

  it('searches with beams as transformers does', async () => {
    const { cases } = JSON.parse(readFileSync(join(goldens, 't5_seq2seq', 'cases.json'), 'utf8')) as {
      cases: { name: string; options: { num_beams: number; length_penalty?: number; early_stopping?: boolean | 'never' } }[];
    };
    const { tensors } = readSafetensors(readFileSync(join(goldens, 't5_seq2seq', 'expected.safetensors')));
    const searched = new Set<string>();
    for (const { name, options } of cases.filter((each) => each.name.startsWith('beams'))) {
      const { num_beams: numBeams, length_penalty: lengthPenalty, early_stopping: earlyStopping } = options;
      const given = tensors[`${name}.input_ids`]?.data as Int32Array;
      const { ids } = await model.complete(given, { maxNewTokens: 12, numBeams, lengthPenalty, earlyStopping });
      const wanted = tensors[`${name}.generated_ids`] as SafetensorsTensor;
      expect(ids, name).toEqual([...wanted.data]);
      searched.add(ids.join());
    }
    expect(searched.size).toBe(2);
  });

  it('reads with one vocabulary and writes with another one', async () => {
    const two = await openModel(join(goldens, 'marian_two'), { simd });
    expect([two.info.vocabSize, two.info.encoder?.vocabSize]).toEqual([64, 70]);
    expect((await two.logits([66, 69])).shape).toEqual([64]);
    expect((await two.complete([66, 69], { maxNewTokens: 2 })).ids).toHaveLength(2);
    expect((await rejectionOf(two.logits([70]))).argument).toBe('input');
    expect((await rejectionOf(two.logits([5], { decoderInput: [64] }))).argument).toBe('decoderInput');
    two.dispose();
  });

  it('scales and mutes heads of cross-attention', async () => {
    const options = { decoderInput: target };
    const headScales = new Float32Array(12).fill(1);
    const plain = await model.logits(source, options);
    expect(await model.logits(source, { ...options, headScales })).toEqual(plain);
    headScales[6 + 2 * 1 + 1] = 0;
    const muted = await model.logits(source, { ...options, headScales });
    expect(muted).not.toEqual(plain);
    const edits = [{ site: 'cross_z', layer: 1, heads: [1], scale: 0 }] as const;
    expect(muted).toEqual(await model.logits(source, { ...options, edits }));
    const most = { maxNewTokens: 6, numBeams: 3 };
    headScales.fill(0, 6);
    const none = ([0, 1, 2] as const).map((layer) => ({ site: 'cross_z', layer, scale: 0 }) as const);
    expect((await model.complete(source, { ...most, headScales })).ids).toEqual((await model.complete(source, { ...most, edits: none })).ids);
    const wrong = { ...options, headScales: new Float32Array(7) };
    expect((await rejectionOf(model.logits(source, wrong))).message).toMatch(/^headScales: expected 6 or 12 numbers/);
  });

  it('ablates heads of both kinds', async () => {
    const metric = { token: 9, against: 3 };
    const texts = [source, source.slice(2)];
    const decoderInputs = [target, [0, 7]];
    const difference = async (text: number, headScales?: Float32Array): Promise<number> => {
      const { data } = await model.logits(texts[text] as number[], { decoderInput: decoderInputs[text], headScales });
      return (data[9] as number) - (data[3] as number);
    };
    for (const site of ['z', 'cross_z'] as const) {
      const { clean, values } = await model.ablate(texts, metric, { decoderInputs, site });
      expect(clean).toBeCloseTo(((await difference(0)) + (await difference(1))) / 2, 4);
      expect(values.shape).toEqual([3, 2]);
      const headScales = new Float32Array(12).fill(1);
      headScales[(site === 'z' ? 0 : 6) + 5] = 0;
      expect(values.data[5]).toBeCloseTo(((await difference(0, headScales)) + (await difference(1, headScales))) / 2, 4);
    }
    const byFunction = await model.ablate(texts, (logits) => (logits[9] as number) - (logits[3] as number), { decoderInputs });
    expect(byFunction.values.data[5]).toBeCloseTo((await model.ablate(texts, metric, { decoderInputs })).values.data[5] as number, 4);
    const refused = async (options: object) => (await rejectionOf(model.ablate(texts, metric, options))).argument;
    expect(await refused({})).toBe('decoderInputs');
    expect(await refused({ decoderInputs: [target] })).toBe('decoderInputs');
    expect(await refused({ decoderInputs, site: 'k' })).toBe('site');
  });

  it('obeys rules', async () => {
    const { ids } = await model.complete(source, { maxNewTokens: 4 });
    const forced = await model.complete(source, { maxNewTokens: 4, forcedBos: 7, forcedEos: 3 });
    expect(forced.ids[0]).toBe(7);
    expect(forced.ids.at(-1)).toBe(forced.ids.length === 4 ? 3 : 1);
    const [first = 0] = ids;
    expect((await model.complete(source, { maxNewTokens: 4, suppress: [first] })).ids).not.toContain(first);
    expect((await model.complete(source, { maxNewTokens: 1, beginSuppress: [first] })).ids).not.toEqual([first]);
    expect((await model.complete(source, { maxNewTokens: 4, badWords: [ids.slice(0, 2)] })).ids.slice(0, 2)).not.toEqual(ids.slice(0, 2));
    expect((await model.complete(source, { maxNewTokens: 4, badWords: [[first]], numBeams: 2 })).ids).not.toContain(first);
    for (const numBeams of [1, 3]) {
      const most = { maxNewTokens: 12, numBeams };
      const once = (await model.complete(source, { ...most, noRepeatNgramSize: 1, minNewTokens: 12 })).ids;
      expect(new Set(once).size).toBe(12);
      const others = (await model.complete(source, { ...most, encoderNoRepeatNgramSize: 1 })).ids;
      expect(others.filter((id) => source.includes(id))).toEqual([]);
      const end = ids[1] as number;
      expect((await model.complete(source, { ...most, stop: [end], minNewTokens: 5 })).ids.slice(0, 5)).not.toContain(end);
    }
  });

  it('refuses wrong options in one sentence', async () => {
    const generate = (options: object) => () => model.generate(source, options);
    const wrong = [
      ...[{ forcedBos: 80 }, { forcedEos: -1 }, { suppress: [1.5] }, { suppress: 3 }, { beginSuppress: [80] }, { badWords: [[]] }],
      ...[{ badWords: [3] }, { numBeams: 0 }, { numBeams: 65 }, { numBeams: 1.5 }, { lengthPenalty: NaN }, { earlyStopping: 'always' }],
      ...[{ noRepeatNgramSize: -1 }, { encoderNoRepeatNgramSize: 0.5 }, { minNewTokens: -1 }, { repetitionPenalty: 0 }],
      ...[{ decoderInput: [80] }, { decoderInput: {} }, { encoderEdits: 3 }],
    ];
    for (const options of wrong) {
      const [name] = Object.keys(options) as [string];
      expect(generate(options), JSON.stringify(options)).toThrow(new RegExp(`^${name}`));
    }
    expect(generate({ numBeams: 2, temperature: 1 })).toThrow(/^temperature/);
    expect(generate({ numBeams: 2, topTokens: 1 })).toThrow(/^topTokens/);
    const refused = async (work: Promise<unknown>) => (await rejectionOf(work)).argument;
    expect(await refused(model.forward(source, { decoderInput: [] }))).toBe('decoderInput');
    expect(await refused(model.forward([80], {}))).toBe('input');
    expect(await refused(model.embed(source))).toBe('model');
    expect(await refused(model.lens(source))).toBe('model');
    expect(await refused(model.trainer())).toBe('model');
    expect(await refused(model.logProbs(source))).toBe('model');
    const other = await openModel(join(goldens, 'gpt2'), { simd });
    expect(other.encoder).toBe(undefined);
    expect(await refused(other.crossAttentions([5, 6]))).toBe('model');
    expect(await refused(other.forward([5, 6], { decoderInput: [1] }))).toBe('decoderInput');
    expect(await refused(other.forward([5, 6], { encoderEdits: [] }))).toBe('encoderEdits');
    expect(await refused(other.forward([5, 6], { return: ['encoderLastHiddenState'] }))).toBe('encoderLastHiddenState');
    expect(() => other.generate([5, 6], { decoderInput: [1] })).toThrow(/^decoderInput/);
    other.dispose();
  });

  it('keeps the rules of its folder', async () => {
    const marian = await openModel(join(goldens, 'marian'), { simd });
    expect(marian.info.rules).toEqual({
      ...{ forcedBos: undefined, forcedEos: 0, suppress: [], beginSuppress: [], badWords: [[79]] },
      ...{ noRepeatNgramSize: 0, encoderNoRepeatNgramSize: 0, minLength: 0, minNewTokens: 0 },
    });
    expect(marian.info.decoderStart).toBe(79);
    expect((await marian.complete(source, { maxNewTokens: 3 })).ids.at(-1)).toBe(0);
    expect((await marian.complete(source, { maxNewTokens: 3, forcedEos: null })).ids).toHaveLength(3);
    expect((await marian.complete(source, { maxNewTokens: 3, forcedEos: null })).ids.at(-1)).not.toBe(0);
    marian.dispose();
    expect(marian.encoder?.disposed).toBe(true);
    const summary = await openModel(join(goldens, 'bart_summary'), { simd });
    expect(summary.info.rules).toMatchObject({ forcedBos: 0, forcedEos: 2, noRepeatNgramSize: 3, minLength: 8, minNewTokens: 0 });
    const generation = { maxNewTokens: 0, maxLength: 18, numBeams: 4, lengthPenalty: 2, earlyStopping: true, repetitionPenalty: 1 };
    expect(summary.info.generation).toEqual(generation);
    const read = source.slice(0, 3);
    expect((await summary.complete(read)).ids).toEqual((await summary.complete(read, { numBeams: 4, maxNewTokens: 17 })).ids);
    // Steps one by one have no beams.
    const drawn = await summary.complete(read, { temperature: 1, topK: 1 });
    expect(drawn.ids).toEqual((await summary.complete(read, { numBeams: 1 })).ids);
    summary.dispose();
  });

  it('reads and writes texts', async () => {
    const folder = folderWithTokenizer('t5_seq2seq', 80);
    const texts = await openModel(folder, { simd });
    const ids = [4, 5, 7];
    expect((await texts.encode('the cat sat')).ids).toEqual(ids);
    const ofText = await texts.complete('the cat sat', { maxNewTokens: 5 });
    expect(ofText.ids).toEqual((await texts.complete(ids, { maxNewTokens: 5 })).ids);
    expect(ofText.text).toBe(await texts.decode(ofText.ids));
    const given = { decoderInput: 'a dog' };
    const want = { decoderInput: [0, 9, 6] };
    expect(await texts.crossAttentions('the cat sat', given)).toEqual(await texts.crossAttentions(ids, want));
    expect((await texts.complete('the cat sat', { ...given, maxNewTokens: 3 })).ids).toEqual(
      (await texts.complete(ids, { ...want, maxNewTokens: 3 })).ids,
    );
    texts.dispose();
    rmSync(folder, { recursive: true });
    expect((await rejectionOf(model.complete('the cat sat'))).argument).toBe('tokenizer');
    expect((await rejectionOf(model.crossAttentions(source, { decoderInput: 'a dog' }))).argument).toBe('tokenizer');
  });

  it('has the same bits in workers', async () => {
    for (const workers of [1, 3]) {
      const other = await openModel(join(goldens, 't5_seq2seq'), { simd, workers });
      const options = { maxNewTokens: 5 };
      expect(other.info).toEqual(model.info);
      expect(await other.complete(source, options)).toEqual(await model.complete(source, options));
      const search = { ...options, numBeams: 3 };
      expect(await other.complete(source, search)).toEqual(await model.complete(source, search));
      const given = { decoderInput: target, headScales: Float32Array.from({ length: 12 }, (_, at) => at / 8) };
      expect(await other.crossAttentions(source, given)).toEqual(await model.crossAttentions(source, given));
      expect(await other.logits(source, given)).toEqual(await model.logits(source, given));
      expect(other.encoder?.workers).toBe(other.workers);
      expect(await other.encoder?.attentions(source)).toEqual(await model.encoder?.attentions(source));
      expect(await other.encoder?.embed(source)).toEqual(await model.encoder?.embed(source));
      other.dispose();
      expect(other.encoder?.disposed).toBe(true);
    }
  });

  it('is saved whole', async () => {
    for (const name of ['t5_gated_seq2seq', 'marian_two']) {
      const given = await openModel(join(goldens, name), { simd });
      const saved = await openModel(saveModel(given, { dtype: 'bf16' }), { simd });
      const options = { decoderInput: [...target] };
      expect(await saved.logits(source, options)).toEqual(await given.logits(source, options));
      expect(saved.info.rules).toEqual(given.info.rules);
      saved.dispose();
      given.dispose();
    }
  });
});
