import { MultiheadError } from 'multihead/models';
import { describe, expect, it } from 'vitest';
import { goldenFiles, wordTokenizer } from '../../../tests/browser/small_models.mjs';
import { problemOf } from '../../src/model/problems.js';
import { ModelSession } from '../../src/model/session.js';
import { given, type Contents } from './given.js';

/** The page's sentence about a golden model with these files in place of its own. */
async function saidOf(model: string, change: Contents): Promise<string> {
  const files = given({ ...goldenFiles(model), ...change });
  try {
    await new ModelSession().open(files, 'auto');
  } catch (error) {
    return problemOf(files, error);
  }
  return '';
}

const gpt2 = goldenFiles('gpt2');
const weights = gpt2['model.safetensors']!;
const config = JSON.parse(new TextDecoder().decode(gpt2['config.json'])) as Record<string, unknown>;
const changed = (change: Record<string, unknown>): string => JSON.stringify({ ...config, ...change });

describe('problemOf', () => {
  it.each<[string, Contents, RegExp | string]>([
    ['no weights in the file', { 'model.safetensors': 'hello, world' }, 'model.safetensors is not a safetensors file.'],
    ['an empty file', { 'model.safetensors': '' }, 'model.safetensors is not a safetensors file.'],
    ['half a file', { 'model.safetensors': weights.slice(0, weights.length / 2) }, 'model.safetensors ends too early. Perhaps the download was cut off.'],
    ['no configuration', { 'config.json': '{' }, 'config.json of model.safetensors is not a configuration in JSON.'],
    ['a list as configuration', { 'config.json': '[1]' }, 'config.json of model.safetensors is not a configuration in JSON.'],
    ['an unknown family', { 'config.json': changed({ model_type: 'mamba' }) }, 'model.safetensors is of the family "mamba", which this page does not know.'],
    ['no family', { 'config.json': '{}' }, 'config.json of model.safetensors names no family of models.'],
    ['an unknown setting', { 'config.json': changed({ activation_function: 'sine' }) }, /^model\.safetensors has a setting that this page does not know: activation_function is "sine"/],
    ['another width', { 'config.json': changed({ n_embd: 32 }) }, /^model\.safetensors does not fit its config\.json: .* is \(\d+ × 16\), expected \(\d+ × 32\)\.$/],
    ['more layers', { 'config.json': changed({ n_layer: 3 }) }, /^model\.safetensors does not fit its config\.json: it lacks .*h\.2\.[\w.]+ and others, which a gpt2 has\.$/],
    ['a broken tokenizer', { 'tokenizer.json': '{' }, 'tokenizer.json of model.safetensors is not valid JSON.'],
    ['a foreign tokenizer', { 'tokenizer.json': '{"model": 1}' }, 'tokenizer.json of model.safetensors is of a kind that this page cannot read.'],
    [
      'the tokenizer of another model',
      { 'tokenizer.json': wordTokenizer([...Array(200).keys()].map((i) => `w${i}`).concat('black')) },
      'tokenizer.json is of another model: it has a token 204, and this model knows those from 0 to 119.',
    ],
  ])('says in one sentence: %s', async (_, change, said) => {
    expect(await saidOf('gpt2', change)).toMatch(said);
  });

  it('names the damaged file of several', async () => {
    const [name, whole] = Object.entries(goldenFiles('qwen3')).find(([file]) => file.startsWith('model-00002'))!;
    expect(await saidOf('qwen3', { [name]: 'hello, world' })).toBe(`${name} is not a safetensors file.`);
    expect(await saidOf('qwen3', { [name]: whole.slice(0, whole.length - 9) })).toBe(`${name} ends too early. Perhaps the download was cut off.`);
  });

  it('names a missing part of the weights', async () => {
    expect(await saidOf('qwen3', { 'model-00002-of-00003.safetensors': null })).toBe(
      'model-00002-of-00003.safetensors is missing. Choose all files of the model together.',
    );
  });

  it('says how much memory is needed, and what would fit', () => {
    const files = given({ 'a.safetensors': '', 'b.safetensors': '' }, 'Large');
    const error = (message: string) => new MultiheadError('E_MEMORY', { argument: 'weights', expected: '', got: '', message });
    const asked = 'weights: the model needs 9537 MiB for the weights, and WebAssembly has at most 4095 MiB';
    expect(problemOf(files, error(`${asked}; weights: 'int8' would fit`))).toBe(
      'Large needs 10.00 GB of memory, and a page has at most 4.29 GB. As int8 it would fit.',
    );
    expect(problemOf(files, error(asked))).toMatch(/No smaller type of weights would fit either\.$/);
    expect(problemOf(files, error('weights: out of memory, asked for 3 bytes'))).toBe('This browser gives the page too little memory for Large.');
  });

  it('keeps a message that it does not know, and shows no control characters of names', () => {
    const files = given({ 'x\u202e.safetensors': '' });
    const gone = new MultiheadError('E_LOAD', { argument: 'tokenizer.json', expected: 'a file that can be read', got: 'It is gone.' });
    expect(problemOf(files, gone)).toBe('The browser could not read the files of x\\u202e.safetensors: It is gone.');
    const notFinite = new MultiheadError('E_FORMAT', { argument: 'h.1.w', expected: 'finite numbers', got: 'NaN' });
    expect(problemOf(files, notFinite)).toBe('x\\u202e.safetensors is damaged: h.1.w has values that are no numbers.');
    expect(problemOf(files, new MultiheadError('E_OPTION', { argument: 'a', expected: 'b', got: 'c' }))).toBe(
      'x\\u202e.safetensors cannot be used: a: expected b, got c',
    );
    expect(problemOf(files, new Error('A sentence.'))).toBe('A sentence.');
  });
});
