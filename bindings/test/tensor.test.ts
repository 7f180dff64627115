import { MultiheadError } from 'multihead';
import { describe, expect, it } from 'vitest';
import { builds, errorOf, expectRefused, loadBuild } from './builds.ts';
import { round } from './half_reference.ts';

describe.each(builds)('tensor, %s', async (simd) => {
  const mh = await loadBuild(simd);

  it('copies its data, and holds zeros without data', () => {
    mh.scope(() => {
      const data = new Float32Array([1, 2, 3, 4, 5, 6]);
      const tensor = mh.tensor(data, [2, 3]);
      data.fill(0);
      expect(tensor).toMatchObject({ shape: [2, 3], dtype: 'f32', size: 6, disposed: false });
      expect([...tensor.data]).toEqual([1, 2, 3, 4, 5, 6]);

      // Fill the memory first, so that zeros are not accidental.
      const used = mh.tensor(new Float32Array(1000).fill(7), [1000]);
      used.dispose();
      expect(mh.zeros([1000]).data.every((x) => x === 0)).toBe(true);

      const bool = mh.tensor(new Uint8Array([0, 1]), [2]);
      expect(bool.dtype).toBe('bool');
      expect(bool.data).toEqual(new Uint8Array([0, 1]));
    });
  });

  it('may have no elements', () => {
    mh.scope(() => {
      const empty = mh.zeros([3, 0, 2]);
      expect(empty.size).toBe(0);
      expect(empty.data).toHaveLength(0);
      expect(mh.memory().live).toBe(1);
    });
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it('has a shape that the caller cannot change', () => {
    mh.scope(() => {
      const shape = [2, 2];
      const tensor = mh.zeros(shape);
      shape[0] = 9;
      expect(tensor.shape).toEqual([2, 2]);
      expect(Object.isFrozen(tensor.shape)).toBe(true);
    });
  });

  it('is disposed once, however often dispose() is called', () => {
    const before = mh.memory().live;
    const tensor = mh.zeros([2]);
    tensor.dispose();
    tensor.dispose();
    tensor[Symbol.dispose]();
    expect(tensor.disposed).toBe(true);
    expect(tensor.shape).toEqual([2]);
    expect(mh.memory().live).toBe(before);
    const error = errorOf(() => tensor.data);
    expect(error).toBeInstanceOf(MultiheadError);
    expect(error.code).toBe('E_DISPOSED');
  });

  it('is disposed by `using`', () => {
    const before = mh.memory().live;
    {
      using tensor = mh.zeros([2]);
      expect(tensor.disposed).toBe(false);
      expect(mh.memory().live).toBe(before + 1);
    }
    expect(mh.memory().live).toBe(before);
  });

  it.each([[[-1]], [[1.5]], [[NaN]], [['2']], [[]], [[1, 1, 1, 1, 1]], [2], [undefined], [[1, , 2]]])('refuses the shape %j', (shape) => {
    expectRefused(mh, () => mh.zeros(shape as never), 'E_SHAPE', 'shape');
  });

  it('refuses data of the wrong length or type, naming what to use', () => {
    expectRefused(mh, () => mh.tensor(new Float32Array(5), [2, 3]), 'E_SHAPE', 'data', '6', '5', '(2, 3)');
    for (const data of [new Float64Array(2), new ArrayBuffer(8), null, 'ab', new Int8Array(2)]) {
      const error = expectRefused(mh, () => mh.tensor(data as never, [2]), 'E_OPTION', 'data', 'Float32Array');
      expect(error.expected).toMatch('Uint8Array');
    }
  });

  it.each(['f16', 'bf16'] as const)('holds %s: takes bits unchanged, and rounds floats', (dtype) => {
    mh.scope(() => {
      const numbers = new Float32Array([0, 1, -2.5, 1 / 3, 1e6, NaN]);
      const rounded = mh.tensor(numbers, [2, 3], { dtype });
      expect(rounded).toMatchObject({ shape: [2, 3], dtype, size: 6 });
      expect(rounded.data).toBeInstanceOf(Uint16Array);
      expect([...rounded.toFloat32()]).toEqual(Array.from(numbers, (x) => round(x, dtype)));

      const bits = mh.tensor(rounded.data, [6], { dtype });
      expect(bits.data).toEqual(rounded.data);
      expect(mh.memory().bytes).toBe(24);
      expect([...mh.zeros([3], { dtype }).data]).toEqual([0, 0, 0]);
    });
  });

  it('returns copies of its numbers', () => {
    mh.scope(() => {
      const floats = mh.tensor(new Float32Array([1, 2]), [2]);
      const copy = floats.toFloat32();
      copy[0] = 9;
      expect([...floats.data]).toEqual([1, 2]);
      expect([...mh.tensor(new Uint8Array([0, 1, 1]), [3]).toFloat32()]).toEqual([0, 1, 1]);
      floats.dispose();
      expect(errorOf(() => floats.toFloat32()).code).toBe('E_DISPOSED');
    });
  });

  it('accepts a dtype that matches the data', () => {
    mh.scope(() => {
      expect(mh.tensor(new Float32Array(1), [1], { dtype: 'f32' }).dtype).toBe('f32');
      expect(mh.tensor(new Uint8Array(1), [1], { dtype: 'bool' }).dtype).toBe('bool');
      expect(mh.zeros([4], { dtype: 'bool' }).data).toEqual(new Uint8Array(4));
    });
  });

  it.each<[string, unknown, unknown, string, ...string[]]>([
    ['an unknown dtype', undefined, { dtype: 'f64' }, 'dtype', '"f16"', '"f64"'],
    ['an unknown option', undefined, { type: 'f16' }, 'type', 'dtype'],
    ['options that are no object', undefined, 'f16', 'tensor', 'dtype', 'f16'],
    ['bits without a dtype', new Uint16Array(2), {}, 'data', 'dtype "f16" or "bf16"', 'without'],
    ['bits as f32', new Uint16Array(2), { dtype: 'f32' }, 'data', 'Float32Array', '"f32"'],
    ['floats as booleans', new Float32Array(2), { dtype: 'bool' }, 'data', 'Uint8Array'],
    ['booleans as f32', new Uint8Array(2), { dtype: 'f32' }, 'data', 'Float32Array'],
    ['booleans as f16', new Uint8Array(2), { dtype: 'f16' }, 'data', 'Uint16Array'],
    ['a text among numbers', [1, '2'], {}, 'data[1]', 'a number', '"2"'],
    ['a hole among numbers', [, 2], {}, 'data[0]', 'undefined'],
    ['a bigint among numbers', [1n, 2], { dtype: 'bool' }, 'data[0]', '1n'],
    ['nested numbers', [[1], [2]], {}, 'data[0]', 'an array of 1'],
    ['numbers that are no array', Object.setPrototypeOf({ 0: 1, 1: 2, length: 2 }, Array.prototype), {}, 'data', 'a Array'],
  ])('refuses %s', (_, data, options, argument, ...words) => {
    const call = () => mh.tensor(data as never, [2], options as never);
    expectRefused(mh, call, 'E_OPTION', argument, ...words);
  });

  it('takes number[], rounded once', () => {
    mh.scope(() => {
      // 1 + 2⁻⁸ + 2⁻³⁰ is above the middle of two bf16 numbers; as a 32-bit float it would be the middle.
      const numbers = [0, -0, 1 + 2 ** -8 + 2 ** -30, 0.1, NaN, -Infinity];
      expect(mh.tensor(numbers, [2, 3]).data).toEqual(Float32Array.from(numbers));
      expect(mh.tensor(numbers, [6], { dtype: 'bool' }).data).toEqual(Uint8Array.of(0, 0, 1, 1, 1, 1));
      expect(mh.tensor(numbers, [6], { dtype: 'bf16' }).toFloat32()[2]).toBe(1 + 2 ** -7);
      expect(mh.tensor(numbers, [6], { dtype: 'f16' }).toFloat32()[3]).toBe(0.0999755859375);
      expect(mh.tensor([], [2, 0]).data).toEqual(new Float32Array());
      const frozen: readonly number[] = Object.freeze([1, 2]);
      expect(mh.tensor(frozen, [2]).data).toEqual(Float32Array.of(1, 2));
    });
    for (const given of [[1], [1, 2, 3], new Array<number>(2 ** 32 - 1)]) {
      expectRefused(mh, () => mh.tensor(given, [2]), 'E_SHAPE', 'data', '2 elements');
    }
  });

  it('takes its shape from nested arrays, or from the length of the data', () => {
    mh.scope(() => {
      expect(
        mh.tensor([
          [1, 2, 3],
          [4, 5, 6],
        ]),
      ).toMatchObject({ shape: [2, 3], data: Float32Array.of(1, 2, 3, 4, 5, 6) });
      expect(mh.tensor([[[[1], [2]]]], undefined, { dtype: 'bf16' })).toMatchObject({ shape: [1, 1, 2, 1], dtype: 'bf16' });
      expect(mh.tensor([[0, 2]], undefined, { dtype: 'bool' }).data).toEqual(Uint8Array.of(0, 1));
      expect(mh.tensor([1, 2]).shape).toEqual([2]);
      expect(mh.tensor([[], []]).shape).toEqual([2, 0]);
      expect(mh.tensor(new Float32Array(3))).toMatchObject({ shape: [3], dtype: 'f32' });
      expect(mh.tensor(new Uint8Array(3))).toMatchObject({ shape: [3], dtype: 'bool' });
    });
    const refused = (data: unknown, code: 'E_SHAPE' | 'E_OPTION', argument: string, ...words: string[]): unknown =>
      expectRefused(mh, () => mh.tensor(data as never), code, argument, ...words);
    refused([[1, 2], [3]], 'E_SHAPE', 'data', 'arrays of equal lengths, (2, 2)');
    refused([[1, 2], [3], [4, 5, 6]], 'E_SHAPE', 'data', 'arrays of equal lengths, (3, 2)');
    refused([[1, 2], 3], 'E_SHAPE', 'data', '(2, 2)');
    refused([[[1]], [[[2]]]], 'E_OPTION', 'data[1]', 'a number', 'an array of 1');
    refused(
      [
        [1, 2],
        [3, '4'],
      ],
      'E_OPTION',
      'data[3]',
      'a number',
      '"4"',
    );
    refused([[[[[1]]]]], 'E_SHAPE', 'data', '1 to 4 extents');
    refused(undefined, 'E_OPTION', 'data', 'undefined');
    refused(new Float64Array(2), 'E_OPTION', 'data', 'Float64Array');
  });

  it('says that the shape comes after the data', () => {
    const call = (shape: unknown, data: unknown) => () => mh.tensor(shape as never, data as never);
    expectRefused(mh, call([1, 2], new Float32Array(2)), 'E_SHAPE', 'shape', 'mh.tensor(data, shape)', 'Float32Array');
    expectRefused(mh, call([1, 3], [1, 2, 3]), 'E_SHAPE', 'data', '(1, 2, 3)');
  });

  it('refuses halves of the wrong length', () => {
    for (const data of [new Uint16Array(5), new Float32Array(5)]) {
      const call = () => mh.tensor(data, [2, 3], { dtype: 'bf16' });
      expectRefused(mh, call, 'E_SHAPE', 'data', '6', '5');
    }
  });

  it('keeps its shape, dtype and size when a caller overwrites its properties', () => {
    mh.scope(() => {
      const tensor = mh.tensor(new Float32Array(8).fill(1), [1, 1, 2, 4]);
      for (const [name, value] of Object.entries({
        ...{ shape: [1, 2, 100_000, 8], dtype: 'f16', size: 1e6, disposed: true },
      })) {
        expect(() => Object.assign(tensor, { [name]: value }), name).toThrow(TypeError);
      }
      const liar = mh.zeros([1, 1, 2, 4]);
      for (const name of ['shape', 'dtype', 'size', 'address', 'data', 'disposed']) {
        const lie = { shape: [1, 2, 100_000, 8], dtype: 'f16' }[name] ?? 4;
        Object.defineProperty(liar, name, { value: lie });
      }
      const { out } = mh.attention(tensor, tensor, liar, { out: mh.zeros([1, 1, 2, 4]) });
      expect(out.shape).toEqual([1, 1, 2, 4]);
      expect([...out.data]).toEqual(new Array(8).fill(0));
      mh.attention(tensor, tensor, tensor, { out: liar });
      const imposter: unknown = Object.create(Object.getPrototypeOf(tensor) as object);
      const call = () => mh.attention(imposter as never, tensor, tensor);
      expectRefused(mh, call, 'E_OPTION', 'q');
    });
  });

  it('shares memory with its reshape()s, which is counted once and freed with the last', () => {
    const before = mh.memory();
    const tensor = mh.tensor(new Float32Array([1, 2, 3, 4, 5, 6]), [2, 3]);
    const row = tensor.reshape([6]);
    const cube = row.reshape([1, 3, 2]);
    expect(cube).toMatchObject({ shape: [1, 3, 2], dtype: 'f32', size: 6, disposed: false });
    expect(mh.memory()).toMatchObject({ live: before.live + 3, bytes: before.bytes + 24 });
    row.data[5] = 9;
    expect([...tensor.data]).toEqual([1, 2, 3, 4, 5, 9]);
    tensor.dispose();
    cube.dispose();
    cube.dispose();
    expect(tensor.disposed).toBe(true);
    expect([...row.data]).toEqual([1, 2, 3, 4, 5, 9]);
    expect(mh.memory()).toMatchObject({ live: before.live + 1, bytes: before.bytes + 24 });
    row.dispose();
    expect(mh.memory()).toMatchObject({ live: before.live, bytes: before.bytes });
    expect(errorOf(() => row.reshape([6])).code).toBe('E_DISPOSED');
    mh.scope(() => {
      const halves = mh.zeros([4], { dtype: 'f16' }).reshape([2, 2]);
      expect(halves).toMatchObject({ dtype: 'f16', shape: [2, 2] });
      expect(mh.zeros([0, 3]).reshape([5, 0]).data).toHaveLength(0);
    });
    expect(mh.memory()).toMatchObject({ live: before.live, bytes: before.bytes });
  });

  it('refuses shapes of another number of elements, and invalid shapes', () => {
    mh.scope(() => {
      const tensor = mh.zeros([2, 3]);
      const refused = (shape: unknown, ...words: string[]) => expectRefused(mh, () => tensor.reshape(shape as never), 'E_SHAPE', 'shape', ...words);
      refused([4], '6', '(2, 3)', '(4)');
      refused([-2, -3]);
      refused([-1, 3]);
      refused([1, 1, 1, 1, 6]);
      refused('6');
    });
  });

  it('refuses extents that the core cannot read, which only a tensor without elements can have', () => {
    for (const shape of [[0, 2 ** 31], [2 ** 32, 0], [2 ** 31]]) {
      expectRefused(mh, () => mh.zeros(shape), 'E_SHAPE', 'shape', 'extents below 2³¹', String(shape[0]));
    }
    mh.scope(() => {
      const empty = mh.zeros([0, 1]);
      expectRefused(mh, () => empty.reshape([0, 2 ** 32 + 1]), 'E_SHAPE', 'shape', 'extents below 2³¹', '4294967297');
      expect(empty.reshape([0, 2 ** 31 - 1]).shape).toEqual([0, 2 ** 31 - 1]);
    });
  });

  it('refuses tensors that share memory as input and output', () => {
    mh.scope(() => {
      const x = mh.zeros([1, 2, 2, 1]);
      const out = x.reshape([1, 1, 4, 1]);
      const q = mh.zeros([1, 1, 4, 1]);
      const k = x.reshape([1, 1, 4, 1]);
      expectRefused(mh, () => mh.attention(q, k, k, { out }), 'E_OPTION', 'out', 'k');
      const op = mh.prepare({ q: [1, 1, 4, 1], return: ['lse'] });
      const sums = (tensor: typeof q) => tensor.reshape([1, 1, 4]);
      const [a, b] = [mh.zeros([1, 1, 4, 1]), mh.zeros([1, 1, 4, 1])];
      const [twice, another] = [sums(a), sums(b)];
      expectRefused(mh, () => op.run(q, k, k, out, twice), 'E_OPTION', 'out', 'k');
      expectRefused(mh, () => op.run(q, k, k, a, twice), 'E_OPTION', 'lse', 'out');
      op.run(q, k, k, a, another);
      const part = { out: a, lse: twice };
      expectRefused(mh, () => mh.mergeAttention(part, { out: b, lse: another }), 'E_OPTION', 'a.lse');
    });
  });

  it('reports a typed array that was detached when the memory grew', () => {
    mh.scope(() => {
      const old = mh.zeros([4]).data;
      mh.zeros([mh.memory().heap / 4]);
      expect(old).toHaveLength(0);
      expect(errorOf(() => mh.tensor(old, [4])).message).toMatch('detached');
    });
  });
});
