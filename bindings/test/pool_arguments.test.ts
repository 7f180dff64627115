// Transfer of arguments to workers: options have the same meaning in a pool as in `mh`, for any kind of object.

import { load, type Multihead } from 'multihead';
import { headStatistics } from 'multihead/lab';
import { createPool, type Pool } from 'multihead/pool';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { packArguments } from '../src/pool/arguments.ts';
import { errorOf, openBuild, rejectionOf } from './builds.ts';
import { sameOfBoth, sameResults } from './pool_results.ts';
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
/** Different objects with the same options. */
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

test('a capture of all heads lists none of them', async () => {
  const none = { shape: [0, 2 ** 31 - 1, 1, 1], data: new Float32Array() };
  const { captures } = await pool.attention(none, none, none, { capture: [{ stage: 'raw' }] });
  expect(captures[0].shape).toEqual([0, 2 ** 31 - 1, 1, 1]);
});

test('what stands several times among the arguments is copied once', async () => {
  const [data, bytes, shape] = [new Float32Array(4), new ArrayBuffer(8), [2, 2]];
  const tensor = (await openBuild('simd128')).mh.tensor(data, shape);
  const { args, transfer } = packArguments([{ data, shape }, { data, shape }, [tensor, tensor, bytes, bytes]]);
  expect(transfer.length).toBe(2);
  const [first, second, third] = args.map((each) => ('value' in each ? each.value : undefined)) as { data: unknown }[];
  expect(first?.data).toEqual(data);
  expect(second?.data).toBe(first?.data);
  const [one, same, copy, sameCopy] = third as unknown as { data: unknown }[];
  expect(same?.data).toBe(one?.data);
  expect(sameCopy).toBe(copy);
  tensor.dispose();
});

test('a DataView takes along its own bytes, not all that its buffer holds', async () => {
  const tensor = (await openBuild('simd128')).mh.zeros([4]);
  const { buffer, byteOffset } = tensor.data;
  new Uint8Array(buffer, byteOffset, 16).set([1, 2, 3, 4, 5, 6, 7, 8]);
  const { args } = packArguments([new DataView(buffer, byteOffset + 2, 5)]);
  const { value } = args[0] as { value: DataView };
  expect(value.buffer.byteLength).toBe(5);
  expect([...new Uint8Array(value.buffer)]).toEqual([3, 4, 5, 6, 7]);
  const error = await rejectionOf(pool.linear(new DataView(buffer) as never, weight));
  expect(error.message).toBe(errorOf(() => mh.linear(new DataView(buffer) as never, weight)).message);
  tensor.dispose();
});

test('a tensor of another copy of the package is an operand, a proxy of a tensor is refused', async () => {
  const other = { __proto__: { shape: [8, 8], dtype: 'f32', data: weight.data, size: 64, disposed: false, dispose() {} } };
  const [expected, tensor] = [mh.linear(x, weight), mh.tensor(weight.data, [8, 8])];
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

describe('wrong arguments get the error of one thread, word for word', () => {
  class Ours {}
  const wrongs: [string, () => unknown][] = [
    ['nothing', () => undefined],
    ['null', () => null],
    ['a number', () => 1],
    ['a function', () => () => 1],
    ['a symbol', () => Symbol('s')],
    ['an array', () => [1, 2]],
    ['an object of a class', () => new Ours()],
    ['a promise', () => Promise.resolve(1)],
    ['a typed array', () => new Float32Array(6)],
    ['a misspelt option', () => ({ cuasal: 'topLeft' })],
    ['a function as an option', () => ({ bias: () => 1, rope: { style: Symbol('half') } })],
    ['a disposed tensor', () => disposed()],
    ['disposed tensors', () => ({ in_proj_weight: disposed(), qNope: disposed(), bias: disposed() })],
    ['a detached array', () => detached()],
  ];
  const disposed = () => {
    const tensor = mh.zeros([5, 8]);
    tensor.dispose();
    return tensor;
  };
  const detached = () => {
    const data = new Float32Array(8);
    structuredClone(data, { transfer: [data.buffer] });
    return { shape: [1, 8], data };
  };
  test.each(wrongs)('%s', async (_, make) => {
    const config = { embedDim: 8, numHeads: 2, bias: false };
    const model = { embedDim: 8, numHeads: 2, numLayers: 1, vocabSize: 4 };
    const all = { workers: 'all' } as const;
    const locals = {
      mha: mh.multiHeadAttention(config),
      model: mh.transformer(model),
      cache: mh.createCache({ numKvHeads: 2, headDim: 8, capacity: 8 }),
    };
    const remotes = {
      mha: await pool.multiHeadAttention(config, all),
      model: await pool.transformer(model, all),
      cache: await pool.createCache({ numKvHeads: 2, headDim: 8, capacity: 8 }, all),
    };
    const dict = { in_proj_weight: filled(r, 24, 8), 'out_proj.weight': filled(r, 8, 8) };
    locals.mha.loadStateDict(dict);
    await remotes.mha.loadStateDict(dict);
    locals.model.initialize();
    await remotes.model.initialize();
    const given = (): never => make() as never;
    const calls: [local: () => unknown, remote: () => Promise<unknown>][] = [
      [() => mh.linear(given(), weight), () => pool.linear(given(), weight)],
      [() => mh.linear(x, given()), () => pool.linear(x, given())],
      [() => mh.rotate(x, given(), { style: 'half' }), () => pool.rotate(x, given(), { style: 'half' })],
      [() => mh.rotate(q, Int32Array.of(1), given()), () => pool.rotate(q, Int32Array.of(1), given())],
      [() => mh.latentAttention(given(), { form: 'absorbed' }), () => pool.latentAttention(given(), { form: 'absorbed' })],
      [() => headStatistics(mh, given()), () => pool.headStatistics(given())],
      [() => mh.attention(q, given(), v), () => pool.attention(q, given(), v)],
      [() => mh.scores(q, given(), { stage: 'raw' }).next(), () => pool.scores(q, given(), { stage: 'raw' }).next()],
      [() => mh.createCache(given()), () => pool.createCache(given())],
      [() => mh.transformer(given()), () => pool.transformer(given(), all)],
      [() => locals.mha.loadStateDict(given()), () => remotes.mha.loadStateDict(given())],
      [() => locals.mha.forward(x, given()), () => remotes.mha.forward(x, given())],
      [() => locals.model.forward(given()), () => remotes.model.forward(given())],
      [() => mh.trainer(locals.model, given()).dispose(), () => pool.trainer(remotes.model, given()).then((made) => made.dispose())],
      [() => locals.cache.append(given(), v), () => remotes.cache.append(given(), v)],
      [() => locals.cache.attend(q, given()), () => remotes.cache.attend(q, given())],
    ];
    let refused = 0;
    await mh.scope(async () => {
      for (const [local, remote] of calls) refused += Number(!(await sameOfBoth(local, remote, String(local))));
    });
    expect(refused).toBeGreaterThan(8);
    for (const each of [...Object.values(locals), ...Object.values(remotes)]) each.dispose();
  });
});
