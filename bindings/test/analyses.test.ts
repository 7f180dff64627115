// Models that are looked into and changed: run(), edits in generate(), and the analyses of language models. The golden values are
// those of lens_cases.json, which conformance_lens.mjs compares.

import { createHash } from 'node:crypto';
import { readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { load } from 'multihead';
import { type Edit, type Metric, type Model, openModel, type Site } from 'multihead/models';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { modelContents } from '../src/models/core/contents.ts';
import { builds, rejectionOf } from './builds.ts';
import { openFromSources } from './model_sources.ts';
import { folderWithTokenizer, goldens } from './tokenizer_files.ts';

const ids = [5, 9, 3, 7, 9, 3];
const other = [5, 8, 3, 7, 8, 3];
const sites = ['resid_pre', 'q', 'k', 'v', 'scores', 'pattern', 'z', 'attn_out', 'resid_mid', 'mlp_hidden', 'mlp_out', 'resid_post'] as const;

function expectClose(got: ArrayLike<number>, want: ArrayLike<number>, tolerance = 1e-4): void {
  expect(got.length).toBe(want.length);
  const worst = Array.from(got, (value, at) => Math.abs(value - (want[at] as number))).reduce((a, b) => (a >= b ? a : b), 0);
  expect(worst).toBeLessThanOrEqual(tolerance);
}

const difference: Metric = { token: 3, against: 4 };
/** The same as a function. */
const asFunction: Metric = (logits, gradient) => {
  if (gradient !== undefined) {
    gradient[3] = 1;
    gradient[4] = -1;
  }
  return (logits[3] as number) - (logits[4] as number);
};

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
  const refused = async (promise: Promise<unknown>, code: string, argument: string) => {
    const error = await rejectionOf(promise);
    expect([error.code, error.argument], error.message).toEqual([code, argument]);
    return error.message;
  };

  it('captures every site, and only what was asked', async () => {
    const { numHeads: heads, numKvHeads: kv, headDim: width, embedDim, mlpDim } = model.info;
    const n = ids.length;
    const { captures, logits, lastHiddenState } = await model.run(ids, { capture: sites.map((site) => ({ site, layer: 0 })) });
    const stream = [n, embedDim];
    expect(captures.map(({ shape }) => shape)).toEqual([
      ...[stream, [n, heads, width], [n, kv, width], [n, kv, width], [heads, n, n], [heads, n, n], [n, heads, width]],
      ...[stream, stream, [n, mlpDim], stream, stream],
    ]);
    expect([logits?.shape, lastHiddenState]).toEqual([[n, model.info.vocabSize], undefined]);
    const { logits: wanted, hiddenStates } = await model.forward(ids, { return: ['logits', 'hiddenStates'] });
    expect(logits).toEqual(wanted);
    const size = n * embedDim;
    expect(captures[0]?.data).toEqual(hiddenStates.data.slice(0, size));
    expect(captures[11]?.data).toEqual(hiddenStates.data.slice(size, 2 * size));
    const { data: map } = await model.attentions(ids, { layer: 0, head: 1 });
    expect(captures[5]?.data.slice(n * n, 2 * n * n)).toEqual(map);

    const { captures: some, ...rest } = await model.run(ids, { capture: [{ site: 'pattern', layer: 0, heads: [1] }], logits: 'none' });
    expect([some, rest]).toEqual([[{ shape: [1, n, n], data: map }], {}]);
    const last = await model.run(ids, { logits: 'last' });
    expect([last.logits, last.captures]).toEqual([await model.logits(ids), []]);
  });

  it('changes values, with numbers in every form', async () => {
    const { embedDim } = model.info;
    const place = { site: 'resid_mid', layer: 0, tokens: [1, 4] } as const;
    const row = Float32Array.from({ length: embedDim }, (_, at) => Math.sin(at));
    const changed = async (edit: Edit) =>
      (await model.run(ids, { edits: [edit], capture: [{ site: 'resid_mid', layer: 0 }] })).captures[0] as { data: Float32Array };
    const [plain] = (await model.run(ids, { capture: [{ site: 'resid_mid', layer: 0 }] })).captures as [
      { shape: number[]; data: Float32Array<ArrayBuffer> },
    ];
    const want = plain.data.slice();
    for (const token of [1, 4]) want.set(row, token * embedDim);
    const mh = await load();
    using tensor = mh.tensor([...row, ...row], [2, embedDim]);
    for (const set of [row, [...row], [[...row], [...row]], { data: row, shape: [1, embedDim] }, tensor]) {
      expect((await changed({ ...place, set })).data).toEqual(want);
    }
    const { data: zeros } = await changed({ ...place, set: 0 });
    expect(zeros.subarray(embedDim, 2 * embedDim)).toEqual(new Float32Array(embedDim));
    expectClose(
      (await changed({ ...place, add: row })).data.subarray(embedDim, 2 * embedDim),
      row.map((x, at) => x + (plain.data[embedDim + at] as number)),
      1e-6,
    );
    expect((await changed({ ...place, scale: 2 })).data[embedDim]).toBe(2 * (plain.data[embedDim] as number));
    const [from] = (await model.run(other, { capture: [{ site: 'resid_mid', layer: 0 }] })).captures as [typeof plain];
    const { data: replaced } = await changed({ ...place, tokens: [1], replace: from });
    expect(replaced.subarray(embedDim, 2 * embedDim)).toEqual(from.data.subarray(embedDim, 2 * embedDim));
    expect(replaced.subarray(2 * embedDim)).toEqual(plain.data.subarray(2 * embedDim));
    // Other passes take edits, too.
    const edits = [{ ...place, set: row }];
    const { logits } = await model.run(ids, { edits });
    expect((await model.logits(ids, { positions: 'all', edits })).data).toEqual(logits?.data);
    expect((await model.forward(ids, { edits })).logits?.data).toEqual(logits?.data);
    expect((await model.lens(ids, { layers: [model.info.numLayers], logits: true, edits })).logits?.data).toHaveLength(logits?.data.length as number);
    expect(await model.measure(ids, { token: 3, against: 4 }, { edits })).toBeCloseTo(
      asFunction((logits as { data: Float32Array<ArrayBuffer> }).data.slice(-model.info.vocabSize)) as number,
      4,
    );
  });

  it('steers what it writes, and copies what it was given', async () => {
    const vector = Float32Array.from({ length: model.info.embedDim }, (_, at) => 3 * Math.cos(at));
    const edit = { site: 'resid_post', layer: 0, add: vector } as const;
    const prompt = [...ids];
    const writing = model.complete(prompt, { maxNewTokens: 5, stop: [], edits: [edit] });
    vector.fill(NaN);
    prompt.fill(0);
    const { ids: steered } = await writing;
    vector.forEach((_, at) => (vector[at] = 3 * Math.cos(at)));
    const all = [...ids];
    for (const token of steered) {
      const { logits } = await model.run(all, { edits: [edit], logits: 'last' });
      const { data } = logits as { readonly data: Float32Array };
      const best = data.reduce((top, value, at) => (value > (data[top] as number) ? at : top), 0);
      expect(token).toBe(best);
      all.push(token);
    }
    expect(steered).not.toEqual((await model.complete(ids, { maxNewTokens: 5 })).ids);
    // Edits of weights need all tokens again.
    const muted = { site: 'pattern', layer: 0, heads: [0], scale: 0 } as const;
    const [token] = (await model.complete(ids, { maxNewTokens: 1, edits: [muted] })).ids;
    const { data } = (await model.run(ids, { edits: [muted], logits: 'last' })).logits as { data: Float32Array };
    expect(data[token as number]).toBe(Math.max(...data));
  });

  it('copies arrays and tensors of edits when an analysis is called', async () => {
    const vector = new Float32Array(model.info.embedDim).fill(1);
    const want = await model.logProbs(ids, { edits: [{ site: 'resid_pre', layer: 0, tokens: [1], add: vector }] });
    const tensor = (await load()).tensor(vector);
    const [nested, plain] = [[[...vector]], { data: vector.slice(), shape: [vector.length] }];
    for (const [add, spoil] of [
      [vector, () => vector.fill(NaN)],
      [nested, () => nested[0]?.fill(NaN)],
      [plain, () => plain.data.fill(NaN)],
      [tensor, () => tensor.dispose()],
    ] as const) {
      const tokens = [1];
      const rating = model.logProbs(ids, { edits: [{ site: 'resid_pre', layer: 0, tokens, add }] });
      tokens[0] = 99;
      spoil();
      expect(await rating).toEqual(want);
    }
  });

  it('keeps keys hidden whatever edits say, so that tokens that are looked up see what they would see', async () => {
    const n = 3;
    for (const edit of [{ set: 0.5 }, { add: 0.25 }, { replace: { shape: [2, n, n], data: new Float32Array(2 * n * n).fill(0.5) } }]) {
      const edits = [{ site: 'pattern', layer: 0, ...edit }] as const;
      const { captures, logits } = await model.run(ids.slice(0, n), { edits, capture: [{ site: 'pattern', layer: 0, heads: [0] }] });
      const pattern = captures[0]?.data ?? [];
      expect([1, 2, 5].map((at) => pattern[at])).toEqual([0, 0, 0]);
      expect(pattern[8]).toBeGreaterThan(0);
      if (!('set' in edit)) continue;
      // The first token of a longer text has the logits that it has alone.
      const { logits: alone } = await model.run(ids.slice(0, 1), { edits });
      expectClose(logits?.data.subarray(0, model.info.vocabSize) as Float32Array, alone?.data as Float32Array);
    }
    const edits = [{ site: 'pattern', layer: 0, set: 0.3 }] as const;
    for (const prompt of [ids, [...ids, ...ids], [1, 1, 1, 1], [2, 3, 2, 3, 2]]) {
      const plain = await model.complete(prompt, { edits, maxNewTokens: 8, stop: [] });
      expect((await model.complete(prompt, { edits, maxNewTokens: 8, stop: [], promptLookupNumTokens: 4, maxMatchingNgramSize: 1 })).ids).toEqual(
        plain.ids,
      );
    }
  });

  it('looks through the lens, and rates tokens', async () => {
    const { numLayers, vocabSize } = model.info;
    const { logits } = await model.run(ids);
    const { data } = await model.logits(ids);
    const lens = await model.lens(ids, { top: 2, tokens: [3, 'cat'], logits: true });
    expect([lens.layers.length, [...lens.inputIds], lens.logits?.shape]).toEqual([numLayers + 1, ids, [numLayers + 1, ids.length, vocabSize]]);
    const size = ids.length * vocabSize;
    expectClose(lens.logits?.data.subarray(numLayers * size) as Float32Array, logits?.data as Float32Array);
    const at = ((numLayers + 1) * ids.length - 1) * 2;
    const [first, second] = [...data.keys()].sort((a, b) => (data[b] as number) - (data[a] as number));
    expect([...lens.ids.subarray(at)]).toEqual([first, second]);
    const sum = data.reduce((total, logit) => total + Math.exp(logit), 0);
    expect(lens.tokenProbabilities[at]).toBeCloseTo(Math.exp(data[3] as number) / sum, 6);
    expect(lens.ranks[at + 1]).toBe(data.filter((logit) => logit > (data[5] as number)).length);
    const rated = await model.logProbs(ids);
    expect([...rated.ids]).toEqual(ids.slice(1));
    expect(rated.values[0]).toBeCloseTo(await model.measure(ids.slice(0, 1), { token: ids[1] as number }), 4);
    const mean = rated.values.reduce((total, value) => total + value, 0) / rated.values.length;
    expect(await model.measure(ids, { meanLogProb: true })).toBeCloseTo(mean, 5);
    expect(rated.ranks).toHaveLength(ids.length - 1);
    expect(await model.measure('the cat', { token: 'sat', position: 0 })).toBeCloseTo(await model.measure([4], { token: 7 }), 5);
  });

  it('patches and ablates every part, with metrics in every form', async () => {
    const { numLayers, numHeads } = model.info;
    const shares: number[] = [];
    const soFar: number[][] = [];
    const { clean, corrupt, values } = await model.patch(ids, other, difference, {
      onProgress(done, { data }) {
        shares.push(done);
        soFar.push([...data]);
      },
    });
    expect(shares.at(-1)).toBe(1);
    soFar.forEach((some, at) => {
      const runs = Math.round((shares[at] as number) * values.data.length);
      expect(some).toEqual([...values.data].map((value, part) => (part < runs ? value : 0)));
    });
    expect(shares).toEqual([...shares].sort((a, b) => a - b));
    expect(values.shape).toEqual([numLayers, numHeads]);
    expect([clean, corrupt]).toEqual([await model.measure(ids, difference), await model.measure(other, difference)]);
    const [z] = (await model.run(other, { capture: [{ site: 'z', layer: 1 }], logits: 'none' })).captures as [
      { shape: number[]; data: Float32Array<ArrayBuffer> },
    ];
    expect(values.data[numHeads + 1]).toBeCloseTo(
      await model.measure(ids, difference, { edits: [{ site: 'z', layer: 1, heads: [1], replace: z }] }),
      4,
    );
    const byFunction = await model.patch(ids, other, asFunction);
    expectClose([byFunction.clean, byFunction.corrupt, ...byFunction.values.data], [clean, corrupt, ...values.data]);
    const layers = await model.patch(ids, other, difference, { by: 'layer' });
    expectClose(layers.values.data.slice(0, 1), [corrupt]);

    const texts = [ids, other, ids.slice(0, 3)];
    const ablated = await model.ablate(texts, { meanLogProb: true });
    expect(ablated.values.shape).toEqual([numLayers, numHeads]);
    const means = await Promise.all(
      texts.map((each) => model.measure(each, { meanLogProb: true }, { edits: [{ site: 'z', layer: 0, heads: [1], set: 0 }] })),
    );
    expect(ablated.values.data[1]).toBeCloseTo(means.reduce((a, b) => a + b) / 3, 4);
    const averaged = await model.ablate(texts, difference, { ablation: 'mean' });
    const same = await model.ablate(texts, asFunction, { ablation: 'mean' });
    expectClose([same.clean, ...same.values.data], [averaged.clean, ...averaged.values.data]);
  });

  it('attributes by gradients, and to logits', async () => {
    const { numLayers, numHeads, embedDim, vocabSize } = model.info;
    const estimate = await model.attributionPatch(ids, other, difference, { positions: true });
    expect(estimate.values.shape).toEqual([numLayers, numHeads, ids.length]);
    const [gradient] = await model.gradients(ids, difference, [{ site: 'resid_pre', layer: 1 }]);
    expect(gradient?.shape).toEqual([ids.length, embedDim]);
    const step = 1e-2;
    const moved = (add: number) =>
      model.measure(ids, difference, {
        edits: [{ site: 'resid_pre', layer: 1, tokens: [2], add: [add, ...new Array<number>(embedDim - 1).fill(0)] }],
      });
    expect(gradient?.data[2 * embedDim]).toBeCloseTo(((await moved(step)) - (await moved(-step))) / (2 * step), 3);
    const sums = await model.attributionPatch(ids, other, asFunction);
    expectClose(
      sums.values.data,
      Array.from(sums.values.data, (_, part) => estimate.values.data.slice(part * ids.length, (part + 1) * ids.length).reduce((a, b) => a + b)),
    );
    expectClose([sums.clean, sums.corrupt], [estimate.clean, estimate.corrupt]);
    expect((await model.gradients(ids, { token: 3 }, [{ site: 'pattern', layer: 0 }]))[0]?.shape).toEqual([numHeads, ids.length, ids.length]);
    const { heads, mlp, embedding, rest, metric } = await model.logitAttribution(ids, { token: 3, against: vocabSize - 1 });
    expect(heads.shape).toEqual([numLayers, numHeads]);
    expect([...heads.data, ...mlp].reduce((a, b) => a + b, embedding + rest)).toBeCloseTo(metric, 4);
  });

  it('refuses what is wrong, and the next call works', async () => {
    const { numLayers, numHeads, vocabSize, embedDim } = model.info;
    const { data: before } = await model.logits(ids);
    const edit = (change: object) => model.run(ids, { edits: [{ site: 'z', layer: 0, scale: 1, ...change } as Edit] });
    const capture = (change: object) => model.run(ids, { capture: [{ site: 'z', layer: 0, ...change }] });
    await refused(edit({ site: 'resid' }), 'E_OPTION', 'edits[0].site');
    await refused(edit({ layer: numLayers }), 'E_OPTION', 'edits[0].layer');
    await refused(edit({ layer: NaN }), 'E_OPTION', 'edits[0].layer');
    await refused(edit({ heads: [numHeads] }), 'E_OPTION', 'edits[0].heads');
    await refused(edit({ heads: [] }), 'E_OPTION', 'edits[0].heads');
    await refused(edit({ site: 'resid_pre', heads: [0] }), 'E_OPTION', 'edits[0].heads');
    await refused(edit({ tokens: [ids.length] }), 'E_OPTION', 'edits[0].tokens');
    await refused(edit({ tokens: [-1] }), 'E_OPTION', 'edits[0].tokens');
    await refused(edit({ scale: NaN }), 'E_OPTION', 'edits[0].scale');
    await refused(edit({ scale: undefined }), 'E_OPTION', 'edits[0]');
    await refused(edit({ set: 1 }), 'E_OPTION', 'edits[0]');
    await refused(edit({ scale: undefined, factor: 1 }), 'E_OPTION', 'factor');
    await refused(edit({ scale: undefined, set: [1, 2, 3] }), 'E_SHAPE', 'edits[0].set');
    await refused(edit({ scale: undefined, set: [[1], [2, 3]] }), 'E_SHAPE', 'edits[0].set');
    await refused(edit({ scale: undefined, add: Infinity }), 'E_OPTION', 'edits[0].add');
    await refused(edit({ scale: undefined, add: 'much' }), 'E_OPTION', 'edits[0].add');
    await refused(edit({ scale: undefined, replace: [1] }), 'E_SHAPE', 'edits[0].replace');
    const mh = await load();
    const gone = mh.tensor([1]);
    gone.dispose();
    await refused(edit({ scale: undefined, set: gone }), 'E_DISPOSED', 'edits[0].set');
    const place = { site: 'resid_pre', layer: 0 } as const;
    await refused(
      model.run(ids, {
        edits: [
          { ...place, set: 1e30 },
          { ...place, scale: 1e30 },
        ],
      }),
      'E_OPTION',
      'edits',
    );
    await refused(capture({ site: 'toString' }), 'E_OPTION', 'capture[0].site');
    await refused(capture({ heads: [1, 1] }), 'E_OPTION', 'capture[0].heads');
    await refused(model.run(ids, { capture: {} as never }), 'E_OPTION', 'capture');
    const places = [{ site: 'z', layer: 0, replace: 1 }] as never;
    expect(() => model.generate(ids, { edits: places })).toThrow(expect.objectContaining({ code: 'E_OPTION', argument: 'edits[0].replace' }));

    await refused(model.measure(ids, {} as Metric), 'E_OPTION', 'metric.token');
    await refused(model.measure(ids, { token: vocabSize }), 'E_OPTION', 'metric.token');
    expect(await refused(model.measure(ids, { token: 'the cat' }), 'E_OPTION', 'metric.token')).toContain('4 ("the"), 5 ("cat")');
    await refused(model.measure(ids, { token: 1, position: ids.length }), 'E_OPTION', 'metric.position');
    await refused(
      model.measure(ids, () => NaN),
      'E_OPTION',
      'metric',
    );
    await refused(
      model.gradients(ids, (_, gradient) => (gradient?.fill(NaN), 0), []),
      'E_OPTION',
      'metric',
    );
    await refused(model.patch(ids, other, (() => Promise.resolve(1)) as never), 'E_OPTION', 'metric');
    await refused(model.patch(ids, other.slice(1), difference), 'E_SHAPE', 'corrupt');
    await refused(model.patch(ids, other, difference, { site: 'resid_pre', by: 'head' }), 'E_OPTION', 'by');
    await refused(model.ablate([], difference), 'E_OPTION', 'texts');
    await refused(model.ablate([ids, []], difference), 'E_OPTION', 'texts[1]');
    await refused(model.lens(ids, { layers: [numLayers + 1] }), 'E_OPTION', 'layers');
    await refused(model.lens(ids, { top: vocabSize + 1 }), 'E_OPTION', 'top');
    await refused(model.lens(ids, { tokens: ['nothing at all'] }), 'E_OPTION', 'tokens[0]');
    await refused(model.logitAttribution(ids, { token: 1 } as never), 'E_OPTION', 'metric');
    await refused(model.gradients(ids, difference, [{ site: 'z', layer: 0, heads: [0] } as never]), 'E_OPTION', 'heads');
    await expect(
      model.patch(ids, other, () => {
        throw new TypeError('of the caller');
      }),
    ).rejects.toThrow('of the caller');

    const aborter = new AbortController();
    const running = model.patch(ids, other, difference, { signal: aborter.signal, onProgress: () => aborter.abort() });
    await refused(running, 'E_ABORTED', 'signal');
    expect((await model.logits(ids)).data).toEqual(before);
    expect(embedDim).toBeGreaterThan(0);
  });

  it('names the sites that a family has, and the models that have no answer', async () => {
    using neox = await openModel(join(goldens, 'gpt_neox'), { simd });
    const message = await refused(neox.run(ids, { capture: [{ site: 'resid_mid', layer: 0 }] }), 'E_OPTION', 'capture[0].site');
    expect(message).toContain('one of resid_pre, q, k, v, scores, pattern, z, attn_out, mlp_hidden, mlp_out, resid_post');
    await refused(neox.gradients(ids, { token: 1 }, [{ site: 'resid_mid', layer: 0 }]), 'E_OPTION', 'places[0].site');
    using gemma = await openModel(join(goldens, 'gemma2'), { simd });
    await refused(gemma.logitAttribution(ids, { token: 3, against: 4 }), 'E_OPTION', 'model');
    for (const name of ['bert', 'bert_masked', 'bert_classes', 'mistral_classes', 'bart', 'vit']) {
      using other = await openModel(join(goldens, name), { simd });
      for (const metric of [{ token: 1 }, () => 1]) await refused(other.measure(ids, metric), 'E_OPTION', 'model');
      await refused(other.lens(ids), 'E_OPTION', 'model');
    }
    await refused(model.measure([1], { meanLogProb: true }), 'E_SHAPE', 'metric');
    using bert = await openModel(join(goldens, 'bert'), { simd });
    const [last] = (await bert.run(ids, { capture: [{ site: 'resid_post', layer: bert.info.numLayers - 1 }] })).captures;
    expect((await bert.run(ids)).lastHiddenState).toEqual(last);
  });

  it('frees what it took, also after an error', async () => {
    const { createGlue } = modelContents;
    const [blocks, handles] = [new Set<number>(), new Set<number>()];
    const counting: typeof createGlue = async (overrides) => {
      const raw = await createGlue(overrides);
      const kept = <T extends number>(handle: T): T => {
        if (handle > 0) handles.add(handle);
        return handle;
      };
      return {
        ...raw,
        get HEAPU8() {
          return raw.HEAPU8;
        },
        _multihead_allocate(bytes) {
          const address = raw._multihead_allocate(bytes);
          blocks.add(address >>> 0);
          return address;
        },
        _multihead_release(address) {
          blocks.delete(address);
          raw._multihead_release(address);
        },
        patchSweepCreate: (of) => kept(raw.patchSweepCreate(of)),
        ablationSweepCreate: (of) => kept(raw.ablationSweepCreate(of)),
        sessionCreate: (of) => kept(raw.sessionCreate(of)),
        sweepRelease: (handle) => (handles.delete(handle), raw.sweepRelease(handle)),
        sessionRelease: (handle) => (handles.delete(handle), raw.sessionRelease(handle)),
      };
    };
    Object.assign(modelContents, { createGlue: counting });
    try {
      using counted = await openFromSources(text, { simd });
      const before = blocks.size;
      const edits = [{ site: 'resid_pre', layer: 0, add: 1 }] as const;
      await counted.run(ids, { edits, capture: [{ site: 'z', layer: 0 }] });
      await counted.complete(ids, { edits, maxNewTokens: 2 });
      await counted.patch(ids, other, asFunction);
      await counted.ablate([ids, other], difference, { ablation: 'mean' });
      await counted.gradients(ids, asFunction, [{ site: 'q', layer: 0 }]);
      await counted.lens(ids, { logits: true, tokens: [1], edits });
      await expect(counted.patch(ids, other, () => NaN)).rejects.toThrow();
      await expect(counted.patch(ids, other.slice(1), difference)).rejects.toThrow();
      await expect(
        counted.run(ids, {
          edits: [
            { site: 'resid_pre', layer: 0, set: 1e30 },
            { site: 'resid_pre', layer: 0, scale: 1e30 },
          ],
        }),
      ).rejects.toThrow();
      expect([blocks.size, handles.size]).toEqual([before, 0]);
    } finally {
      Object.assign(modelContents, { createGlue });
    }
  });

  it('loads what analyses need from parts.analyses, when one is first called', async () => {
    const address = (build: string) => new URL(`../dist/multihead-${build}-${simd}.wasm`, import.meta.url);
    const bytes = readFileSync(address('analyses'));
    const hash = (file: Uint8Array) => `sha256-${createHash('sha256').update(file).digest('base64')}`;
    const others = ['models', 'inspection'].map((build) => hash(readFileSync(address(build)))).join(' ');
    const integrity = `${others} ${hash(bytes)}`;
    for (const analyses of [bytes, address('analyses'), address('analyses').href, new Response(bytes), await WebAssembly.compile(bytes)]) {
      using opened = await openModel(text, { simd, parts: { analyses }, ...(analyses === bytes && { integrity }) });
      const both = await Promise.all([opened.measure(ids, difference), opened.measure(ids, difference)]);
      expect(both).toEqual([await model.measure(ids, difference), both[0]]);
      using trainer = await opened.trainer();
      expect(trainer.steps()).toBe(0);
    }
    const wrong = [
      [address('models'), /not multihead .*'s module for this build/],
      [address('nothing'), /cannot load .*multihead-nothing.*parts\.analyses/],
      [new Uint8Array(9), /not a WebAssembly file/],
    ] as const;
    for (const [analyses, message] of wrong) {
      using opened = await openModel(text, { simd, parts: { analyses } });
      for (const call of [() => opened.lens(ids), () => opened.trainer()]) expect(await refused(call(), 'E_LOAD', 'parts.analyses')).toMatch(message);
      expect((await opened.run(ids)).logits).toEqual((await model.run(ids)).logits);
    }
    using strict = await openModel(text, { simd, integrity: others });
    expect(await refused(strict.lens(ids), 'E_LOAD', 'parts.analyses')).toMatch(/its hash is .*, which integrity lacks/);
    await refused(openModel(text, { simd, parts: { analyses: 5 as never } }), 'E_OPTION', 'parts.analyses');
  });

  it('computes no gradients in workers, and ends sweeps there', async () => {
    using apart = await openModel(text, { simd, workers: 2 });
    await refused(apart.gradients(ids, { token: 1 }, [{ site: 'z', layer: 0 }]), 'E_OPTION', 'model');
    await refused(apart.attributionPatch(ids, other, difference), 'E_OPTION', 'model');
    await refused(apart.logitAttribution(ids, difference), 'E_OPTION', 'model');
    await refused(apart.trainer(), 'E_OPTION', 'model');
    const controller = new AbortController();
    const stopped = apart.patch(ids, other, difference, { signal: controller.signal, onProgress: () => controller.abort() });
    await refused(stopped, 'E_ABORTED', 'signal');
    let runs = 0;
    const infinite = () => ((runs += 1) < 5 ? 1 : Infinity);
    await refused(apart.ablate([ids], infinite), 'E_OPTION', 'metric');
    expect(await apart.patch(ids, other, { token: 1 })).toEqual(await model.patch(ids, other, { token: 1 }));
    const left = apart.patch(ids, other, difference, { onProgress: () => apart.dispose() });
    await refused(left, 'E_DISPOSED', 'model');
  });

  it('refuses a model that was disposed', async () => {
    const gone = await openModel(text, { simd });
    const sweep = gone.patch(ids, other, difference, { onProgress: () => gone.dispose() });
    await refused(sweep, 'E_DISPOSED', 'model');
    await refused(gone.measure(ids, { token: 1 }), 'E_DISPOSED', 'model');
  });
});

/** A site of the table above that the type lacks is a type error. */
sites satisfies readonly Site[];
