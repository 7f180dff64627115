import { MultiheadError } from 'multihead';
import { describe, expect, it } from 'vitest';
import { builds, errorOf, expectRefused, loadBuild } from './builds.ts';
import { round } from './half_reference.ts';

describe.each(builds)('tensor, %s', async (simd) => {
  const mh = await loadBuild(simd);

  it('copies its data in, and makes zeros without any', () => {
    mh.scope(() => {
      const data = new Float32Array([1, 2, 3, 4, 5, 6]);
      const tensor = mh.tensor([2, 3], data);
      data.fill(0);
      expect(tensor).toMatchObject({ shape: [2, 3], dtype: 'f32', size: 6, disposed: false });
      expect([...tensor.data]).toEqual([1, 2, 3, 4, 5, 6]);

      // Memory that has been used before, so that zeros are no accident.
      const used = mh.tensor([1000], new Float32Array(1000).fill(7));
      used.dispose();
      expect(mh.tensor([1000]).data.every((x) => x === 0)).toBe(true);

      const bool = mh.tensor([2], new Uint8Array([0, 1]));
      expect(bool.dtype).toBe('bool');
      expect(bool.data).toEqual(new Uint8Array([0, 1]));
    });
  });

  it('may have no elements', () => {
    mh.scope(() => {
      const empty = mh.tensor([3, 0, 2]);
      expect(empty.size).toBe(0);
      expect(empty.data).toHaveLength(0);
      expect(mh.memory().live).toBe(1);
    });
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it('has a shape that the caller cannot change', () => {
    mh.scope(() => {
      const shape = [2, 2];
      const tensor = mh.tensor(shape);
      shape[0] = 9;
      expect(tensor.shape).toEqual([2, 2]);
      expect(Object.isFrozen(tensor.shape)).toBe(true);
    });
  });

  it('is disposed once, however often it is asked to be', () => {
    const before = mh.memory().live;
    const tensor = mh.tensor([2]);
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
      using tensor = mh.tensor([2]);
      expect(tensor.disposed).toBe(false);
      expect(mh.memory().live).toBe(before + 1);
    }
    expect(mh.memory().live).toBe(before);
  });

  it.each([
    [[-1]],
    [[1.5]],
    [[NaN]],
    [['2']],
    [[]],
    [[1, 1, 1, 1, 1]],
    [2],
    [undefined],
    [[1, , 2]],
  ])('refuses the shape %j', (shape) => {
    expectRefused(mh, () => mh.tensor(shape as never), 'E_SHAPE', 'shape');
  });

  it('refuses data of the wrong length or type, naming what to use', () => {
    expectRefused(
      mh,
      () => mh.tensor([2, 3], new Float32Array(5)),
      'E_SHAPE',
      'data',
      '6',
      '5',
      '(2, 3)',
    );
    for (const data of [
      [1, 2],
      new Float64Array(2),
      new ArrayBuffer(8),
      null,
      'ab',
      new Int8Array(2),
    ]) {
      const error = expectRefused(
        mh,
        () => mh.tensor([2], data as never),
        'E_OPTION',
        'data',
        'Float32Array',
      );
      expect(error.expected).toMatch('Uint8Array');
    }
  });

  it.each(['f16', 'bf16'] as const)('holds %s: bits as they are, floats rounded', (dtype) => {
    mh.scope(() => {
      const numbers = new Float32Array([0, 1, -2.5, 1 / 3, 1e6, NaN]);
      const rounded = mh.tensor([2, 3], numbers, { dtype });
      expect(rounded).toMatchObject({ shape: [2, 3], dtype, size: 6 });
      expect(rounded.data).toBeInstanceOf(Uint16Array);
      expect([...rounded.toFloat32()]).toEqual(Array.from(numbers, (x) => round(x, dtype)));

      const bits = mh.tensor([6], rounded.data, { dtype });
      expect(bits.data).toEqual(rounded.data);
      expect(mh.memory().bytes).toBe(24);
      expect([...mh.tensor([3], undefined, { dtype }).data]).toEqual([0, 0, 0]);
    });
  });

  it('gives copies of its numbers', () => {
    mh.scope(() => {
      const floats = mh.tensor([2], new Float32Array([1, 2]));
      const copy = floats.toFloat32();
      copy[0] = 9;
      expect([...floats.data]).toEqual([1, 2]);
      expect([...mh.tensor([3], new Uint8Array([0, 1, 1])).toFloat32()]).toEqual([0, 1, 1]);
      floats.dispose();
      expect(errorOf(() => floats.toFloat32()).code).toBe('E_DISPOSED');
    });
  });

  it('takes a dtype that says what the data says anyway', () => {
    mh.scope(() => {
      expect(mh.tensor([1], new Float32Array(1), { dtype: 'f32' }).dtype).toBe('f32');
      expect(mh.tensor([1], new Uint8Array(1), { dtype: 'bool' }).dtype).toBe('bool');
      expect(mh.tensor([4], undefined, { dtype: 'bool' }).data).toEqual(new Uint8Array(4));
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
    ['number[] as f16', [1, 2], { dtype: 'f16' }, 'data', 'Uint16Array', 'number[]'],
  ])('refuses %s', (_, data, options, argument, ...words) => {
    const call = () => mh.tensor([2], data as never, options as never);
    expectRefused(mh, call, 'E_OPTION', argument, ...words);
  });

  it('refuses halves of the wrong length', () => {
    for (const data of [new Uint16Array(5), new Float32Array(5)]) {
      const call = () => mh.tensor([2, 3], data, { dtype: 'bf16' });
      expectRefused(mh, call, 'E_SHAPE', 'data', '6', '5');
    }
  });

  it('says when a typed array is a view from before the memory grew', () => {
    mh.scope(() => {
      const old = mh.tensor([4]).data;
      mh.tensor([mh.memory().heap / 4]);
      expect(old).toHaveLength(0);
      expect(errorOf(() => mh.tensor([4], old)).message).toMatch('detached');
    });
  });
});
