// How arguments travel to workers: options mean to a pool what they mean to `mh`, whatever kind of object they are.

import { load, type Multihead } from 'multihead';
import { createPool, type Pool } from 'multihead/pool';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { rejectionOf } from './builds.ts';
import { sameResults } from './pool_results.ts';
import { random } from './random.ts';
import { filled } from './random_case.ts';

let mh: Multihead;
let pool: Pool;
beforeAll(async () => {
  mh = await load();
  pool = await createPool({ workers: 2 });
});
afterAll(() => pool.dispose());

const r = random(21);
const [q, k, v, x, weight] = [filled(r, 1, 2, 5, 8), filled(r, 1, 2, 5, 8), filled(r, 1, 2, 5, 8), filled(r, 1, 5, 8), filled(r, 8, 8)];

const signal = new AbortController().signal;
class OfAClass {
  get causal(): 'topLeft' {
    return 'topLeft';
  }
  describe(): string {
    return 'not an option';
  }
}
/** The same options, as different objects. */
const kinds: [string, () => object][] = [
  ['a plain object', () => ({ causal: 'topLeft' })],
  ['a getter of a class', () => new OfAClass()],
  ['another object behind it', () => Object.create({ causal: 'topLeft' }) as object],
  ['no prototype', () => Object.assign(Object.create(null) as object, { causal: 'topLeft' })],
  ['a proxy', () => new Proxy({ causal: 'topLeft' }, {})],
];
const withSignal = (options: object): object => Object.assign(options, { signal });

describe.each(kinds)('options are %s', (_, make) => {
  test.each([
    ['alone', Object.freeze(make())],
    ['with a signal', withSignal(make())],
    ['with a signal behind them', Object.create(withSignal(make())) as object],
  ])('%s', async (_, given) => {
    const expected = mh.attention(q, k, v, { causal: 'topLeft' });
    sameResults(await pool.attention(q, k, v, given), expected, 'attention');
    expected.out.dispose();

    const config = { embedDim: 8, numHeads: 2, bias: false, outProj: false };
    const [local, remote] = [mh.multiHeadAttention(config), await pool.multiHeadAttention(config)];
    const dict = { in_proj_weight: filled(random(22), 24, 8) };
    local.loadStateDict(dict);
    await remote.loadStateDict(dict);
    const { output } = local.forward(x, { causal: 'topLeft' });
    sameResults({ output: (await remote.forward(x, given)).output }, { output }, 'forward');
    for (const each of [output, local, remote]) each.dispose();
  });
});

test('operands and configurations may be objects of a class', async () => {
  class Matrix {
    readonly #of = weight;
    get data(): Float32Array {
      return this.#of.data;
    }
    get shape(): readonly number[] {
      return this.#of.shape;
    }
  }
  class Config {
    readonly numHeads = 2;
    get embedDim(): number {
      return 8;
    }
  }
  const expected = mh.linear(x, weight);
  sameResults({ y: await pool.linear(x, new Matrix()) }, { y: expected }, 'linear');
  expected.dispose();
  const layer = await pool.multiHeadAttention(new Config());
  expect(layer.config.embedDim).toBe(8);
  layer.dispose();
});

test('what is added to Object.prototype is no option', async () => {
  const prototype = Object.prototype as { extra?: unknown; softcap?: unknown };
  const [dict, expected] = [{ in_proj_weight: filled(r, 24, 8) }, mh.attention(q, k, v)];
  const layer = await pool.multiHeadAttention({ embedDim: 8, numHeads: 2, bias: false, outProj: false });
  prototype.extra = prototype.softcap = 1;
  try {
    sameResults(await pool.attention(q, k, v, {}), expected, 'attention');
    await layer.loadStateDict(dict);
    await layer.forward(x, { causal: 'topLeft', signal });
  } finally {
    delete prototype.extra;
    delete prototype.softcap;
  }
  for (const each of [expected.out, layer]) each.dispose();
});

test('a huge array is refused at once', async () => {
  const shape = new Array<number>(2 ** 32 - 1);
  const error = await rejectionOf(pool.linear({ shape, data: new Float32Array(4) }, weight));
  expect([error.code, error.argument]).toEqual(['E_OPTION', 'arguments']);
  expect(error.got).toContain(String(2 ** 32 - 1));
});

test('a tensor of another copy of the package is an operand, a proxy of a tensor is refused', async () => {
  const other = { __proto__: { shape: [8, 8], dtype: 'f32', data: weight.data, size: 64, disposed: false, dispose() {} } };
  const [expected, tensor] = [mh.linear(x, weight), mh.tensor([8, 8], weight.data)];
  sameResults({ y: await pool.linear(x, other as never) }, { y: expected }, 'linear');
  const error = await rejectionOf(pool.linear(x, new Proxy(tensor, {})));
  expect([error.code, error.got]).toEqual(['E_OPTION', expect.stringContaining('a proxy of a tensor')]);
  for (const each of [expected, tensor]) each.dispose();
});

test('an object of another pool is refused', async () => {
  const other = await createPool({ workers: 1 });
  const model = await other.transformer({ embedDim: 8, numHeads: 2, numLayers: 1, vocabSize: 4 });
  const error = await rejectionOf(pool.trainer(model));
  expect([error.code, error.message]).toEqual(['E_OPTION', expect.stringContaining('this pool')]);
  other.dispose();
});
