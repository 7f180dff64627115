import { MultiheadError } from 'multihead/models';
import { describe, expect, it } from 'vitest';
import { goldenFiles, wordTokenizer } from '../../../tests/browser/small_models.mjs';
import { problemOf } from '../../src/model/problems.js';
import { ModelSession } from '../../src/model/session.js';
import { failureOf } from '../../src/workers/protocol.js';
import { given, type Contents } from './given.js';

/** The page's sentence about a golden model with these files in place of its own. */
async function saidOf(model: string, change: Contents): Promise<string> {
  const files = given({ ...goldenFiles(model), ...change });
  try {
    await new ModelSession().open(files, 'auto');
  } catch (error) {
    return problemOf(files, failureOf(error));
  }
  return '';
}

const gpt2 = goldenFiles('gpt2');
const config = JSON.parse(new TextDecoder().decode(gpt2['config.json'])) as Record<string, unknown>;
const changed = (change: Record<string, unknown>): string => JSON.stringify({ ...config, ...change });

describe('problemOf', () => {
  it.each<[string, Contents, RegExp | string]>([
    ['no weights in the file', { 'model.safetensors': 'hello, world' }, /^model\.safetensors cannot be used: /],
    ['no configuration', { 'config.json': '{' }, /^model\.safetensors cannot be used: config\.json: /],
    [
      'an unknown family',
      { 'config.json': changed({ model_type: 'mamba' }) },
      /^model\.safetensors cannot be used: config\.json: model_type: expected .*, got "mamba"/,
    ],
    ['a broken tokenizer', { 'tokenizer.json': '{' }, /^model\.safetensors cannot be used: tokenizer\.json: /],
    [
      'the tokenizer of another model',
      { 'tokenizer.json': wordTokenizer([...Array(200).keys()].map((i) => `w${i}`).concat('black')) },
      'tokenizer.json is of another model: it has a token 204, and this model knows those from 0 to 119.',
    ],
  ])('names the model, and keeps what the package says: %s', async (_, change, said) => {
    expect(await saidOf('gpt2', change)).toMatch(said);
  });

  it('names a missing part of the weights', async () => {
    expect(await saidOf('qwen3', { 'model-00002-of-00003.safetensors': null })).toBe(
      'model-00002-of-00003.safetensors is missing. Choose all files of the model together.',
    );
  });

  it.each([
    ['E_MEMORY', 'weights', 'Large needs more memory than this page gets: weights: expected b, got c'],
    ['E_ABORTED', 'signal', 'Stopped: Large was not opened.'],
    ['E_LOAD', 'config.json', 'The browser could not read the files of Large: c'],
    ['E_SHAPE', 'prompt', 'This text has c, more than the model takes.'],
    ['E_OPTION', 'a', 'Large cannot be used: a: expected b, got c'],
  ] as const)('goes by the code and the argument: %s of %s', (code, argument, said) => {
    const files = given({ 'a.safetensors': '', 'b.safetensors': '' }, 'Large');
    expect(problemOf(files, failureOf(new MultiheadError(code, { argument, expected: 'b', got: 'c' })))).toBe(said);
  });

  it('does not repeat the name, shows no control characters of names, and keeps a sentence of the page', () => {
    const files = given({ 'x\u202e.safetensors': '' });
    const error = new MultiheadError('E_FORMAT', { argument: 'x\u202e.safetensors: header', expected: 'b', got: 'c' });
    expect(problemOf(files, failureOf(error))).toBe('x\\u202e.safetensors cannot be used: header: expected b, got c');
    expect(problemOf(files, failureOf(new Error('A sentence.')))).toBe('A sentence.');
  });
});
