import { readdirSync, readFileSync, statSync } from 'node:fs';
import { describe, expect, it, vi } from 'vitest';
import { openModel } from 'multihead/models';
import { englishFiles, englishText, qualityIn, qualityOf, type Measured } from '../../src/model/english.js';
import { englishName } from '../../src/model/limits.js';
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

const measured: Measured = { trainingTokens: 1_056_195, heldOut: { perplexity: 41.6, perplexityOfWords: 335.2 } };

describe('the little Llama', () => {
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
    const { heads } = JSON.parse(await files.files.find(({ path }) => path === 'heads.json')!.file.text()) as {
      heads: { layer: number; head: number }[];
    };
    expect(heads.map(({ layer, head }) => [layer, head])).toEqual([0, 1].flatMap((layer) => [0, 1, 2, 3].map((head) => [layer, head])));
    expect(await qualityIn(files)).toMatch(/^Trained with this library on /);
  });
});

describe('the quality of the little Llama', () => {
  it('is said in words', () => {
    expect(qualityOf(measured)).toMatch(/1\.1 million tokens .* perplexity is 42 a token and 335 a word/);
  });

  it('is read from heads.json, and nothing is said if it is missing or something else', async () => {
    expect(await qualityIn(given({ 'heads.json': JSON.stringify(measured) }))).toBe(qualityOf(measured));
    for (const content of [null, '', '{}', 'null', '[]', '{"heads":[]}']) expect(await qualityIn(given({ 'heads.json': content }))).toBe('');
  });
});
