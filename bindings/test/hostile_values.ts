// Values that a caller may pass by mistake: of any type, altered, or detached.

import type { Multihead } from 'multihead';
import type { Random } from './random.ts';

function detached(length: number): Float32Array {
  const array = new Float32Array(length);
  structuredClone(array.buffer, { transfer: [array.buffer] });
  return array;
}

interface Resizable extends ArrayBuffer {
  resize(bytes: number): void;
}
const resizable = (bytes: number, most: number): Resizable =>
  new (ArrayBuffer as unknown as new (bytes: number, options: object) => Resizable)(bytes, {
    maxByteLength: most,
  });

function shrunk(): Float32Array {
  const buffer = resizable(64, 128);
  const array = new Float32Array(buffer, 32, 8);
  buffer.resize(16);
  return array;
}

class OfAClass {
  readonly scale = 1;
  get causal(): string {
    return 'topLeft';
  }
}

const cyclic: Record<string, unknown> = {};
cyclic['data'] = cyclic;
cyclic['shape'] = [cyclic];

/** Makes a new value for each call, because some values can be used only once. */
export function hostileValue(r: Random, mh: Multihead, other: Multihead): unknown {
  const small = [0, -0, -1, 1, 2, 3, 7, 0.5, -2.5, NaN, Infinity, -Infinity, 5e-324, 1e-40];
  const large = [255, 65_536, 2 ** 31 - 1, 2 ** 31, 2 ** 32, 2 ** 32 + 1, 2 ** 53, 1e308, -(2 ** 31)];
  const texts = ['', 'x', 'topLeft', 'f16', 'bool', 'length', '__proto__', '\ud800', 'x'.repeat(999)];
  const made: (() => unknown)[] = [
    () => r.pick(small),
    () => r.pick(large),
    () => r.pick(texts),
    () => r.pick([undefined, null, true, false]),
    () => r.pick([0n, -1n, 7n, 2n ** 63n, 2n ** 64n]),
    () => Symbol('hostile'),
    () => () => {},
    () => ({}),
    () => [],
    () => [r.pick(small), r.pick(large)],
    () => [1, , 2],
    () => new Array(r.pick([5, 70_000])),
    () => Object.create(null) as unknown,
    () => new OfAClass(),
    () => new Map([['shape', [1]]]),
    () => new Date(0),
    () => /x/,
    () => Promise.resolve(1),
    () => JSON.parse('{"__proto__": {"scale": 2}, "shape": [1]}') as unknown,
    () => cyclic,
    () => new Float32Array(r.pick([0, 1, 7, 64])),
    () => new Float64Array(4),
    () => new Int32Array(r.pick([0, 1, 3])).fill(r.pick([-1, 0, 1, 2 ** 31 - 1])),
    () => new Uint8Array(r.pick([0, 64])),
    () => new BigInt64Array(2),
    () => new DataView(new ArrayBuffer(8)),
    () => new ArrayBuffer(8),
    () => new Float32Array(new SharedArrayBuffer(64)),
    () => detached(r.pick([0, 8, 64])),
    () => shrunk(),
    () => new Float32Array(resizable(32, 64)),
    () => ({ data: detached(4), shape: [4] }),
    () => ({ data: new Float32Array(4), shape: [2, 2], dtype: 'f16' }),
    () => ({ data: new Float32Array(1), shape: [2 ** 31, 2 ** 31] }),
    () => ({ data: new Float32Array(0), shape: [0, 2 ** 31] }),
    () => ({ offset: r.pick(large) }),
    () => mh,
    () => foreign(other),
    () => gone(mh),
    () => r.pick(tensorLikes)(mh),
  ];
  return r.pick(made)();
}

/** A tensor of another load(), which lives as long as the test. */
let ofOther: object | undefined;
const foreign = (other: Multihead): object => (ofOther ??= other.zeros([1, 2, 3, 4]));

function gone(mh: Multihead): object {
  const tensor = mh.zeros([1, 2, 3, 4]);
  tensor.dispose();
  return tensor;
}

const tensorLikes: ((mh: Multihead) => object)[] = [(mh) => new Proxy(gone(mh), {}), (mh) => Object.create(gone(mh)) as object];

const isPlain = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && (Array.isArray(value) || Object.getPrototypeOf(value) === Object.prototype);

interface Place {
  readonly holder: Record<string, unknown>;
  readonly name: string;
}

/** Every property in a tree of plain objects and arrays. */
export function placesIn(tree: unknown): Place[] {
  if (!isPlain(tree)) return [];
  return Object.keys(tree).flatMap((name) => [{ holder: tree, name }, ...placesIn(tree[name])]);
}

/** A copy of a tree; typed arrays and objects of classes are shared. */
export function copied<T>(tree: T): T {
  if (Array.isArray(tree)) return tree.map(copied) as T;
  if (!isPlain(tree)) return tree;
  return Object.fromEntries(Object.entries(tree).map(([name, each]) => [name, copied(each)])) as T;
}

/** Replaces a value by another kind of object with the same contents. */
export function disguise(r: Random, { holder, name }: Place): void {
  const value = holder[name];
  const ways: (() => void)[] = [() => {}];
  if (isPlain(value)) {
    ways.push(() => (holder[name] = Object.freeze(value)));
    if (!Array.isArray(value)) {
      ways.push(() => (holder[name] = Object.assign(Object.create(null) as object, value)));
      // Names of parameters, tensors and metadata count only as own properties, unlike names of options.
      const areOptions = Object.keys(value).every((each) => /^[a-z]{2,}$/i.test(each));
      if (areOptions) ways.push(() => (holder[name] = Object.create(value)));
    }
  }
  if (ArrayBuffer.isView(value)) {
    const { constructor } = value as unknown as { constructor: new (from: unknown) => object };
    ways.push(() => {
      const array = value as Float32Array;
      const buffer = new SharedArrayBuffer(array.byteLength + 8);
      const Same = constructor as unknown as new (of: SharedArrayBuffer, at: number, n: number) => Float32Array;
      holder[name] = new Same(buffer, 8, array.length);
      (holder[name] as Float32Array).set(array);
    });
  }
  r.pick(ways)();
}
