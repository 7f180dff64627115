import { readdirSync, readFileSync, statSync } from 'node:fs';
import { describe, expect, it, vi } from 'vitest';
import { openModel } from 'multihead/models';
import { englishFiles, englishName, englishText, findingsOf, habitsOf, missingOf, qualityOf, type Measured } from '../../src/model/english.js';
import { englishMegabytes } from '../../src/model/english_size.js';
import { given } from './given.js';

const folder = new URL('../../public/english/', import.meta.url);
const names = readdirSync(folder);

/** Answers requests for the page's own files from the folder that is published. */
const serve = (missing = '') =>
  vi.stubGlobal('fetch', async (address: URL) => {
    const name = address.pathname.split('/').at(-1)!;
    return name === missing ? new Response('', { status: 404 }) : new Response(readFileSync(new URL(name, folder)));
  });

const equal = { previous: 0.06, first: 0.06, itself: 0.07, punctuation: 0.11, induction: 0.03 };
const measured = (...heads: Partial<Measured['heads'][number]>[]): Measured => ({
  trainingTokens: 1_056_195,
  heldOut: { perplexity: 41.6, perplexityOfWords: 335.2 },
  chance: equal,
  heads: heads.map((scores, head) => ({ layer: 1, head, ...equal, ...scores })),
});

describe('the small English model', () => {
  it('has at most 1 MB of files, which the button rounds to a tenth', () => {
    const bytes = names.reduce((sum, name) => sum + statSync(new URL(name, folder)).size, 0);
    expect(bytes).toBeLessThanOrEqual(1_000_000);
    expect((bytes / 1e6).toFixed(1)).toBe(String(englishMegabytes));
  });

  it('is fetched from below the page, opens, and finds the name that comes next', async () => {
    serve();
    const files = await englishFiles('https://example.org/page/index.html#state');
    expect(files.name).toBe(englishName);
    const model = await openModel(files.files.map(({ file }) => file));
    expect([model.info.modelType, model.info.numLayers, model.info.numHeads]).toEqual(['llama', 2, 4]);
    const { ids } = await model.encode(englishText);
    const likely = [];
    for await (const { topTokens } of model.generate(ids, { maxNewTokens: 1, topTokens: 5 })) {
      for (const { token } of topTokens) likely.push(await model.decode([token]));
    }
    expect(likely).toHaveLength(5);
    expect(likely.join()).toContain('Knightley');
    model.dispose();
  });

  it('says which file is missing', async () => {
    serve('tokenizer.json');
    await expect(englishFiles('https://example.org/')).rejects.toThrow('tokenizer.json: HTTP status 404');
  });

  it('comes with findings about each of its heads', async () => {
    serve();
    const files = await englishFiles('https://example.org/');
    const { heads } = JSON.parse(await files.files.find(({ path }) => path === 'heads.json')!.file.text()) as Measured;
    expect(heads.map(({ layer, head }) => [layer, head])).toEqual([0, 1].flatMap((layer) => [0, 1, 2, 3].map((head) => [layer, head])));
    expect((await findingsOf(files))!.habits.length).toBeGreaterThan(0);
  });
});

describe('findings', () => {
  it('become a sentence for each head far from equal weights', () => {
    const said = habitsOf(measured({ previous: 0.72 }, { itself: 0.16 }, { induction: 0.25, first: 0.21 }, { punctuation: 0.24 }));
    expect(said).toEqual([
      { layer: 1, head: 0, sentence: '72\u00a0% of its weight is on the token before (equal weights: 6\u00a0%).' },
      {
        layer: 1,
        head: 2,
        sentence:
          '25\u00a0% of its weight is on what followed the same token last time, where a text repeats (equal weights: 3\u00a0%); 21\u00a0% of its weight is on the first token (equal weights: 6\u00a0%).',
      },
    ]);
  });

  it('say if no head has learned induction', () => {
    expect(missingOf(measured({ induction: 0.19 }, { induction: 0.05 }))).toMatch(
      /^None has learned induction, .* at most 19\u00a0% of a head’s weight \(equal weights: 3\u00a0%\)\.$/,
    );
    expect(missingOf(measured({}, { induction: 0.25 }))).toBe('');
  });

  it('say how well the model knows the text', () => {
    expect(qualityOf(measured())).toMatch(/1\.1 million tokens .* perplexity is 42 a token and 335 a word/);
  });

  it('are read from heads.json, and nothing is said if it is missing or something else', async () => {
    const { habits } = (await findingsOf(given({ 'heads.json': JSON.stringify(measured({ first: 1 })) })))!;
    expect(habits).toEqual([{ layer: 1, head: 0, sentence: '100\u00a0% of its weight is on the first token (equal weights: 6\u00a0%).' }]);
    for (const content of [null, '', '{}', 'null', '[]', '{"heads":[]}']) expect(await findingsOf(given({ 'heads.json': content }))).toBeUndefined();
  });
});
