import { openModel, type Model } from 'multihead/models';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { bytePairTokenizer, gpt2Config, gpt2Tensors, safetensors } from '../../../tests/browser/small_models.mjs';
import type { Laboratory } from '../../src/model/laboratory.js';
import { ModelSession } from '../../src/model/session.js';
import { given } from './given.js';

const words = ['the', ' black', ' cat', ' sat', ' on', ' the', ' mat', 'The', '.'];
const files = { 'config.json': gpt2Config, 'model.safetensors': safetensors(gpt2Tensors()), 'tokenizer.json': bytePairTokenizer(words, 24) };
const [clean, corrupt] = ['the black cat sat', 'the black mat sat'];
const session = new ModelSession();
let direct: Model;
let laboratory: Laboratory;
const never = new AbortController().signal;

beforeAll(async () => {
  await session.open(given(files), 'auto');
  direct = await openModel(given(files).files.map(({ file }) => file));
  laboratory = await session.laboratory();
});
afterAll(() => {
  session.close();
  direct.dispose();
});

const begin = (texts: readonly [string, string] = [clean, corrupt], answers: readonly [string, string] = ['on', '·mat']) =>
  laboratory.pair(texts, answers);

describe('the laboratory', () => {
  it('gives the likeliest words of each layer, and how likely each word was', async () => {
    const { labels, likeliest, logProbs } = await laboratory.lens(clean);
    expect(labels).toEqual(['the', '·black', '·cat', '·sat']);
    expect(likeliest).toHaveLength(3 * 4);
    const { ids } = await direct.encode(clean);
    const { ids: top, probabilities } = await direct.lens(ids, { top: 5 });
    expect(likeliest[5]!.map(({ share }) => share)).toEqual([...probabilities.slice(25, 30)]);
    expect(likeliest[11]![0]!.label.replace('·', ' ')).toBe(await direct.decode([top[55]!]));
    expect(logProbs).toEqual([...(await direct.logProbs(ids)).values]);
    expect((await laboratory.lens('the')).logProbs).toEqual([]);
  });

  it('patches heads and positions as patch() does, and tells the values so far', async () => {
    const pair = await begin();
    expect([pair.words, pair.tokens]).toEqual([
      ['·on', '·mat'],
      [4, 6],
    ]);
    const metric = { token: 4, against: 6 };
    const [a, b] = [(await direct.encode(clean)).ids, (await direct.encode(corrupt)).ids];
    const estimate = await direct.attributionPatch(a, b, metric);
    expect(pair.attribution).toEqual(estimate.values);
    expect(pair.metrics).toEqual([estimate.clean, estimate.corrupt]);
    for (const [kind, by] of [
      ['heads', 'head'],
      ['positions', 'position'],
    ] as const) {
      const told: number[] = [];
      const { data } = await laboratory.patch(kind, never, ({ patched, known, values }) => {
        expect(patched).toBe(kind);
        expect([...values.data.slice(known)].every((value) => value === 0)).toBe(true);
        told.push(known);
      });
      expect(data).toEqual((await direct.patch(a, b, metric, { by })).values.data);
      expect(told.at(-1)).toBe(data.length);
    }
    const stopped = new AbortController();
    stopped.abort();
    await expect(laboratory.patch('heads', stopped.signal, () => {})).rejects.toMatchObject({ code: 'E_ABORTED' });
  });

  it('says what a part changes: the last layer at the last word gives the second text\u2019s next words', async () => {
    await begin();
    const [before, after] = await laboratory.changed('positions', 1, 3);
    const shares = async (text: string) => [...(await direct.lens((await direct.encode(text)).ids, { layers: [2] })).probabilities.slice(-5)];
    expect(before.map(({ share }) => share)).toEqual(await shares(clean));
    // The texts differ in their last word alone, so exchanging its input makes the first text the second.
    const all = await laboratory.changed('positions', 0, 2);
    (await shares(corrupt)).forEach((share, at) => expect(all[1][at]!.share).toBeCloseTo(share, 5));
    expect(after).not.toEqual(before);
  });

  it('takes the likeliest words if none is given, and says what is wrong with texts and words', async () => {
    const { tokens } = await begin([clean, corrupt], ['', '']);
    expect(tokens[0]).not.toBe(tokens[1]);
    expect((await begin([clean, corrupt], ['', 'on'])).tokens[1]).toBe(4);
    await expect(begin(['the cat', 'the black cat'])).rejects.toThrow(/need as many: 2 \(the \| ·cat\) and 3 \(the \| ·black \| ·cat\)\.$/);
    await expect(begin(['the', ''])).rejects.toThrow('The experiment needs two sentences');
    await expect(begin(['the '.repeat(70), clean])).rejects.toThrow(/^A sentence has \d+ tokens; the experiment takes 40\.$/);
    await expect(begin([clean, clean])).rejects.toThrow('Both sentences are the same.');
    await expect(begin([clean, corrupt], ['on', 'on'])).rejects.toThrow('two different words');
    await expect(begin([clean, corrupt], ['the cat', 'on'])).rejects.toThrow(/is 2 tokens of this model/);
    await expect(laboratory.changed('heads', 0, 0)).rejects.toThrow('No experiment was begun.');
  });

  it('changes the model while it writes', async () => {
    const written = async (...change: Parameters<ModelSession['start']> extends [string, ...infer C] ? C : never): Promise<string> => {
      let text = '';
      for (let next = await session.start(clean, ...change); next; next = await session.next()) text += next.text;
      return text;
    };
    const plain = await written();
    expect(await written({ kind: 'scale', layer: 0, head: 1, factor: 1 })).toBe(plain);
    expect(await written({ kind: 'steer', layer: 1, factor: 0, texts: [clean, corrupt] })).toBe(plain);
    const edits = await laboratory.editsFor({ kind: 'steer', layer: 1, factor: 40, texts: [corrupt, clean] });
    const steered = await direct.complete(clean, { maxNewTokens: 24, edits });
    expect(await written({ kind: 'steer', layer: 1, factor: 40, texts: [corrupt, clean] })).toBe(steered.text);
    expect(steered.text).not.toBe(plain);
    // The direction is the difference of the means over the tokens, from the second text to the first.
    const means = await Promise.all(
      [corrupt, clean].map(async (text) => {
        const { shape, data } = (await direct.run(text, { capture: [{ site: 'resid_pre', layer: 1 }] })).captures[0]!;
        return Array.from({ length: shape[1]! }, (_, col) => [0, 1, 2, 3].reduce((sum, row) => sum + data[row * shape[1]! + col]! / 4, 0));
      }),
    );
    const { add } = edits[0] as unknown as { add: Float32Array };
    add.forEach((value, col) => expect(value).toBeCloseTo(40 * (means[0]![col]! - means[1]![col]!), 3));
    const [swap] = await laboratory.editsFor({ kind: 'swap', layer: 1, head: 2, text: corrupt });
    const { captures } = await direct.run(corrupt, { capture: [{ site: 'z', layer: 1, heads: [2] }] });
    expect(swap).toMatchObject({ site: 'z', layer: 1, heads: [2], set: captures[0]!.data.slice(-4) });
  });
});
