// Safetensors: round trips, comparison with a second reader, and malformed or damaged files.

import { readdir, readFile } from 'node:fs/promises';
import { MultiheadError, readSafetensors, writeSafetensors, type SafetensorsTensor, type Shape } from 'multihead';
import { describe, expect, it } from 'vitest';
import { builds, errorOf, loadBuild } from './builds.ts';
import { encode } from './half_reference.ts';
import { random, runSeed, type Random } from './random.ts';

const encoder = new TextEncoder();

/** A file with exactly this header, followed by `dataBytes` bytes of data. */
function fileOf(header: unknown, dataBytes = 0): Uint8Array<ArrayBuffer> {
  const text = header instanceof Uint8Array ? header : encoder.encode(typeof header === 'string' ? header : JSON.stringify(header));
  const file = new Uint8Array(8 + text.length + dataBytes);
  new DataView(file.buffer).setBigUint64(0, BigInt(text.length), true);
  file.set(text, 8);
  for (let i = 0; i < dataBytes; i += 1) file[8 + text.length + i] = i;
  return file;
}

interface Entry {
  dtype: string;
  shape: number[];
  data_offsets: [number, number];
}

/** A second reader, which checks nothing and reads one number at a time. */
function plainlyRead(file: Uint8Array): Record<string, { dtype: string; shape: number[]; data: (number | bigint)[] }> {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const start = 8 + Number(view.getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(file.subarray(8, start))) as Record<string, Entry>;
  const readers: Record<string, [number, (at: number) => number | bigint]> = {
    F64: [8, (at) => view.getFloat64(at, true)],
    I64: [8, (at) => view.getBigInt64(at, true)],
    U64: [8, (at) => view.getBigUint64(at, true)],
    F32: [4, (at) => view.getFloat32(at, true)],
    C64: [4, (at) => view.getFloat32(at, true)],
    I32: [4, (at) => view.getInt32(at, true)],
    U32: [4, (at) => view.getUint32(at, true)],
    F16: [2, (at) => view.getUint16(at, true)],
    BF16: [2, (at) => view.getUint16(at, true)],
    I16: [2, (at) => view.getInt16(at, true)],
    U16: [2, (at) => view.getUint16(at, true)],
    I8: [1, (at) => view.getInt8(at)],
  };
  const tensors = Object.entries(header).filter(([name]) => name !== '__metadata__');
  return Object.fromEntries(
    tensors.map(
      ([
        name,
        {
          dtype,
          shape,
          data_offsets: [begin, end],
        },
      ]) => {
        const [bytes, read] = readers[dtype] ?? [1, (at: number) => view.getUint8(at)];
        const data = [];
        for (let at = start + begin; at < start + end; at += bytes) data.push(read(at));
        return [name, { dtype: dtype.toLowerCase(), shape, data }];
      },
    ),
  );
}

/** The result of readSafetensors() in the form of plainlyRead(). */
const asNumbers = (tensors: Readonly<Record<string, SafetensorsTensor>>): unknown =>
  Object.fromEntries(
    Object.entries(tensors).map(([name, { dtype, shape, data }]) => [name, { dtype, shape, data: Array.from<number | bigint>(data) }]),
  );

const product = (shape: Shape): number => shape.reduce((a, b) => a * b, 1);

/** Every dtype of the format, in the order of its documentation: bits of a number, and its typed array. */
const formatDTypes = {
  BOOL: [8, Uint8Array],
  F4: [4, Uint8Array],
  F6_E2M3: [6, Uint8Array],
  F6_E3M2: [6, Uint8Array],
  U8: [8, Uint8Array],
  I8: [8, Int8Array],
  F8_E5M2: [8, Uint8Array],
  F8_E4M3: [8, Uint8Array],
  F8_E8M0: [8, Uint8Array],
  F8_E4M3FNUZ: [8, Uint8Array],
  F8_E5M2FNUZ: [8, Uint8Array],
  I16: [16, Int16Array],
  U16: [16, Uint16Array],
  F16: [16, Uint16Array],
  BF16: [16, Uint16Array],
  I32: [32, Int32Array],
  U32: [32, Uint32Array],
  F32: [32, Float32Array],
  C64: [64, Float32Array],
  F64: [64, Float64Array],
  I64: [64, BigInt64Array],
  U64: [64, BigUint64Array],
} as const;
const namesOfDTypes = Object.keys(formatDTypes) as (keyof typeof formatDTypes)[];

/** The length of `data`: two floats per complex number, one byte per two 4-bit numbers. */
function lengthOf({ dtype, shape, data }: SafetensorsTensor): number {
  const [bits] = formatDTypes[dtype.toUpperCase() as keyof typeof formatDTypes];
  return (product(shape) * bits) / 8 / data.BYTES_PER_ELEMENT;
}

/** A tensor of random bits, NaNs among them. */
function randomTensor(pick: Random): SafetensorsTensor {
  const shape = Array.from({ length: pick.int(0, 8) }, () => pick.int(0, 3));
  const name = pick.pick(namesOfDTypes);
  const [bits, array] = formatDTypes[name];
  // Four numbers of 4 or 6 bits fill whole bytes.
  if (bits < 8) shape.splice(7, 1, 4);
  const bytes = Uint8Array.from({ length: (product(shape) * bits) / 8 }, () => pick.int(0, 255));
  const data = new array(bytes.buffer);
  return { dtype: name.toLowerCase(), shape, data } as SafetensorsTensor;
}

const names = ['weight', 'h.0.attn.c_attn.weight', '', 'constructor', '__proto__', 'é 深', '"\\\n', '7', '{', ':'];

function randomTensors(pick: Random): Record<string, SafetensorsTensor> {
  const chosen = names.filter(() => pick.next() < 0.5);
  return Object.fromEntries(chosen.map((name) => [name, randomTensor(pick)]));
}

/** The bits of each tensor, so that NaNs compare equal to themselves. */
const bitsOf = (tensors: Readonly<Record<string, SafetensorsTensor>>): unknown =>
  Object.entries(tensors)
    .map(([name, { dtype, shape, data }]) => {
      const bits = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
      return [name, dtype, [...shape], Array.from(bits)];
    })
    .sort(([a], [b]) => ((a as string) < (b as string) ? -1 : 1));

const entry = (shape: unknown, data_offsets: unknown, dtype: unknown = 'F32'): unknown => ({
  dtype,
  shape,
  data_offsets,
});

describe('writeSafetensors and readSafetensors', () => {
  it(`round-trip any tensors (seed ${runSeed})`, () => {
    for (let seed = runSeed; seed < runSeed + 300; seed += 1) {
      const pick = random(seed);
      const tensors = randomTensors(pick);
      const metadata = { format: 'pt', '': 'é', __proto__x: '"' };
      const file = writeSafetensors(tensors, pick.next() < 0.5 ? { metadata } : {});
      const read = readSafetensors(file);
      expect(bitsOf(read.tensors), `seed ${seed}`).toEqual(bitsOf(tensors));
      expect([{}, metadata]).toContainEqual({ ...read.metadata });
      // Data begins at a multiple of 8, so no tensor needs a copy.
      expect(new DataView(file.buffer).getUint32(0, true) % 8).toBe(0);
      for (const { data } of Object.values(read.tensors)) expect(data.buffer).toBe(file.buffer);
      // Reads the same file from an ArrayBuffer, and from a view at any offset.
      const shifted = new Uint8Array(file.length + 9);
      const odd = shifted.subarray(pick.int(0, 8)).subarray(0, file.length);
      odd.set(file);
      expect(bitsOf(readSafetensors(file.buffer).tensors)).toEqual(bitsOf(tensors));
      expect(bitsOf(readSafetensors(odd).tensors)).toEqual(bitsOf(tensors));
      expect(writeSafetensors(read.tensors, { metadata: read.metadata }).length).toBeGreaterThan(0);
    }
  });

  it('write the bytes that the format defines', () => {
    const file = writeSafetensors(
      {
        flag: { shape: [1], data: new Uint8Array([1]) },
        half: { shape: [], data: new Uint16Array([0x3c00]), dtype: 'f16' },
        x: { shape: [2], data: new Float32Array([1, -2]) },
      },
      { metadata: { format: 'pt' } },
    );
    const header =
      '{"__metadata__":{"format":"pt"},' +
      '"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},' +
      '"half":{"dtype":"F16","shape":[],"data_offsets":[8,10]},' +
      '"flag":{"dtype":"BOOL","shape":[1],"data_offsets":[10,11]}}';
    const padded = header.padEnd(Math.ceil(header.length / 8) * 8);
    expect(Array.from(file)).toEqual([
      ...[padded.length, 0, 0, 0, 0, 0, 0, 0],
      ...encoder.encode(padded),
      ...[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0, 0, 0x3c, 1],
    ]);
  });

  it(`store all floats in the requested dtype (seed ${runSeed})`, () => {
    const floats = random(runSeed).floats(37);
    const integers = { shape: [1], data: new Int32Array([-3]), dtype: 'i32' } as const;
    for (const dtype of ['f16', 'bf16'] as const) {
      const halves = Uint16Array.from(floats, (value) => encode(value, dtype));
      const half = readSafetensors(writeSafetensors({ x: { shape: [37], data: floats }, integers }, { dtype }));
      expect(half.tensors['x']).toEqual({ dtype, shape: [37], data: halves });
      expect(half.tensors['integers']).toEqual(integers);
      const wide = readSafetensors(writeSafetensors(half.tensors, { dtype: 'f32' }));
      const again = readSafetensors(writeSafetensors(wide.tensors, { dtype }));
      expect(wide.tensors['x']?.dtype).toBe('f32');
      expect(again.tensors['x']?.data).toEqual(halves);
    }
  });

  it('keep every dtype of the format, and put those that modules take into stateDict', () => {
    const file = writeSafetensors(
      Object.fromEntries(
        namesOfDTypes.map((name) => {
          const [bits, array] = formatDTypes[name];
          const data = new array(Uint8Array.from({ length: bits }, (_, i) => 3 * i).buffer);
          return [name, { dtype: name.toLowerCase(), shape: [2, 4], data } as SafetensorsTensor];
        }),
      ),
    );
    const { tensors, stateDict } = readSafetensors(file);
    expect(asNumbers(tensors)).toEqual(plainlyRead(file));
    for (const name of namesOfDTypes) {
      expect(tensors[name]?.data).toBeInstanceOf(formatDTypes[name][1]);
      expect(tensors[name]?.data.buffer, name).toBe(file.buffer);
    }
    expect(Object.keys(stateDict).sort()).toEqual(['BF16', 'F16', 'F32', 'F64']);
    const doubles = tensors['F64']?.data as Float64Array;
    expect(stateDict['F64']).toEqual({
      dtype: 'f32',
      shape: [2, 4],
      data: Float32Array.from(doubles, Math.fround),
    });
    for (const name of ['F32', 'F16', 'BF16']) expect(stateDict[name]).toBe(tensors[name]);
  });

  it('read tensors of a checkpoint that are not parameters: positions, quantized weights, a mask', () => {
    // Puts the data at an offset of 3 bytes, where it is not aligned to its element size.
    const header = {
      mask: entry([3], [0, 3], 'BOOL'),
      position_ids: entry([2], [3, 19], 'I64'),
      quantized: entry([1, 4], [19, 23], 'F8_E4M3'),
      running_mean: entry([1], [23, 31], 'F64'),
      weight: entry([1], [31, 35]),
    };
    const text = JSON.stringify(header);
    const file = fileOf(text.padEnd(Math.ceil(text.length / 8) * 8), 35);
    const values = new DataView(file.buffer, file.length - 35);
    values.setBigInt64(3, -(2n ** 62n), true);
    values.setFloat64(23, 1 + 2 ** -40, true);
    values.setFloat32(31, -7, true);
    const { tensors, stateDict } = readSafetensors(file);
    expect(tensors['position_ids']?.data[0]).toBe(-(2n ** 62n));
    expect(tensors['quantized']?.data).toEqual(Uint8Array.of(19, 20, 21, 22));
    expect(tensors['running_mean']?.data[0]).toBe(1 + 2 ** -40);
    expect(tensors['weight']?.data[0]).toBe(-7);
    expect(Object.keys(stateDict)).toEqual(['running_mean', 'weight']);
    expect(stateDict['running_mean']?.data[0]).toBe(1);
  });

  it('round doubles only once when they store them as halves', () => {
    // Numbers just above and just below the midpoint of two halves, by less than the spacing of floats.
    const [above, below] = [1 + 2 ** -11 + 2 ** -40, 1 + 2 ** -10 + 2 ** -11 - 2 ** -40];
    const [aboveB, belowB] = [1 + 2 ** -8 + 2 ** -40, 1 + 2 ** -7 + 2 ** -8 - 2 ** -40];
    const doubles = [above, -above, below, 2 ** -25 + 2 ** -60, 1e300, -1e300, NaN, -0, 65519.999999999];
    const stored = (dtype: 'f16' | 'bf16' | 'f32', data: number[]) => {
      const x = { dtype: 'f64', shape: [data.length], data: Float64Array.from(data) } as const;
      return Array.from(readSafetensors(writeSafetensors({ x }, { dtype })).stateDict['x']?.data ?? []);
    };
    expect(stored('f16', doubles)).toEqual([...[0x3c01, 0xbc01, 0x3c01, 0x0001], ...[0x7c00, 0xfc00, 0x7e00, 0x8000, 0x7bff]]);
    expect(stored('bf16', [aboveB, -aboveB, belowB, 1e300, -0])).toEqual([...[0x3f81, 0xbf81, 0x3f81, 0x7f80, 0x8000]]);
    expect(stored('f32', doubles)).toEqual(doubles.map(Math.fround));
  });

  it.each(builds)('write tensors, and read parameters for modules: %s', async (simd) => {
    const mh = await loadBuild(simd);
    const x = mh.tensor(new Float32Array([1, 2, 3, 4, 5, 6]), [2, 3]);
    const half = mh.tensor(new Float32Array([0.5, -8]), [2], { dtype: 'bf16' });
    const mask = mh.tensor(new Uint8Array([1, 0]), [2]);
    const { tensors, stateDict } = readSafetensors(writeSafetensors({ x, half, mask }));
    expect(tensors['mask']).toEqual({ dtype: 'bool', shape: [2], data: new Uint8Array([1, 0]) });
    expect(Object.keys(stateDict)).toEqual(['x', 'half']);
    const { x: weight } = stateDict;
    if (weight === undefined || !(weight.data instanceof Float32Array)) throw new Error('no x');
    const y = mh.linear(x, { shape: weight.shape, data: weight.data });
    expect(Array.from(y.data)).toEqual([14, 32, 32, 77]);

    for (const tensor of [x, half, mask, y]) tensor.dispose();
    const disposed = errorOf(() => writeSafetensors({ 'a.b': x }));
    expect(disposed).toMatchObject({ code: 'E_DISPOSED', argument: 'a.b' });
    expect(mh.memory().live).toBe(0);
  });

  it('read the golden cases like the second reader', async () => {
    const root = new URL('../../tests/conformance/', import.meta.url);
    const files = (await readdir(root, { recursive: true })).filter((name) => name.endsWith('.safetensors'));
    expect(files.length).toBeGreaterThan(4);
    for (const name of files) {
      const file = await readFile(new URL(name, root));
      const { tensors } = readSafetensors(file);
      expect(asNumbers(tensors), name).toEqual(plainlyRead(file));
      const again = readSafetensors(writeSafetensors(tensors));
      expect(asNumbers(again.tensors), name).toEqual(asNumbers(tensors));
    }
  }, 120_000);
});

describe('readSafetensors', () => {
  const f32 = entry([1], [0, 4]);
  const deep = '['.repeat(100_000);
  // Description of the defect, the file, the argument of the error, and words of its message.
  const lies: [string, Uint8Array, string, RegExp][] = [
    ['no bytes', new Uint8Array(0), 'safetensors', /at least 8 bytes, got 0/],
    ['a length that is cut off', new Uint8Array(7), 'safetensors', /got 7/],
    ['a header beyond the file', fileOf('{}').subarray(0, 9), 'safetensors header', /expected 2 bytes, got 1, as of a download that was cut off/],
    ['a header of 2⁶⁴ bytes', new Uint8Array(16).fill(0xff), 'safetensors header', /at most 100000000 bytes, got .*: this is no safetensors file/],
    ['a header of no bytes', fileOf(''), 'safetensors header', /JSON object in UTF-8/],
    ['no JSON', fileOf('{nonsense'), 'safetensors header', /JSON object/],
    ['JSON that goes on', fileOf('{} {}'), 'safetensors header', /JSON object/],
    ['no object', fileOf('[1,2]'), 'safetensors header', /got \[1, 2\]/],
    ['null', fileOf('null'), 'safetensors header', /got null/],
    ['a deeply nested header', fileOf(`{"x":${deep}`), 'safetensors header', /JSON object/],
    ['a blank in front', fileOf(' {}'), 'safetensors header', /from its first byte on/],
    ['a byte order mark', fileOf('\ufeff{}'), 'safetensors header', /JSON object in UTF-8/],
    ['a header that is not UTF-8', fileOf(new Uint8Array([0x7b, 0x22, 0xff, 0x22])), 'safetensors header', /UTF-8/],
    ['half a surrogate pair', fileOf('{"\\ud800":1}'), 'safetensors header', /names in Unicode/],
    ['a name twice', fileOf('{"x":1, "y":{"x":"{"}, "x" : 2}'), 'safetensors header', /"x" twice/],
    ['a name twice, escaped', fileOf('{"\\u0078\\"":1,"x\\"":2}'), 'safetensors header', /twice/],
    ['a field twice', fileOf('{"x":{"dtype":"F32","dtype":"F16"}}'), 'safetensors header', /"dtype" twice/],
    ['a field twice, deeper', fileOf('{"x":[[{"a":{"b":[]},"a":1}]]}'), 'safetensors header', /"a" twice/],
    ['metadata that is a list', fileOf({ __metadata__: [] }), '__metadata__', /object of texts/],
    ['metadata that is no text', fileOf({ __metadata__: { a: 1 } }), '__metadata__', /under "a", got 1/],
    ['an entry that is null', fileOf({ x: null }), 'x', /an object of dtype/],
    ['an entry without fields', fileOf({ x: {} }), 'x', /a dtype of F64, F32.*got nothing/],
    ['an unknown dtype', fileOf({ 'a.b': entry([1], [0, 16], 'F128') }, 16), 'a.b', /BF16.*got "F128"/],
    ['a dtype of JavaScript', fileOf({ x: entry([1], [0, 4], 'constructor') }, 4), 'x', /dtype/],
    ['a dtype that is a number', fileOf({ x: entry([1], [0, 4], 1) }, 4), 'x', /dtype.*got 1/],
    ['a dtype in small letters', fileOf({ x: entry([1], [0, 4], 'f32') }, 4), 'x', /dtype/],
    ['a shape that is a text', fileOf({ x: entry('1', [0, 4]) }, 4), 'x', /shape.*got "1"/],
    ['no shape', fileOf({ x: { dtype: 'F32', data_offsets: [0, 4] } }, 4), 'x', /shape.*nothing/],
    ['nine extents', fileOf({ x: entry(Array(9).fill(1), [0, 4]) }, 4), 'x', /at most 8/],
    ['a negative extent', fileOf({ x: entry([-1], [0, 4]) }, 4), 'x', /≥ 0, got \[-1\]/],
    ['two negative extents', fileOf({ x: entry([-1, -1], [0, 4]) }, 4), 'x', /≥ 0/],
    ['minus zero', fileOf('{"x":{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}}'), 'x', /shape/],
    ['half an extent', fileOf({ x: entry([0.5, 2], [0, 4]) }, 4), 'x', /whole numbers/],
    ['an extent that is a text', fileOf({ x: entry(['1'], [0, 4]) }, 4), 'x', /whole numbers/],
    ['an extent beyond 2⁵³', fileOf('{"x":{"dtype":"F32","shape":[9007199254740993],"data_offsets":[0,0]}}'), 'x', /whole/],
    ['a product beyond 2⁵³', fileOf({ x: entry([2 ** 52, 2 ** 52], [0, 4]) }, 4), 'x', /more than 2⁵⁰ bytes/],
    ['a product that wraps to 0', fileOf({ x: entry([2 ** 32, 2 ** 32], [0, 0]) }), 'x', /more than 2⁵⁰/],
    ['no offsets', fileOf({ x: { dtype: 'F32', shape: [0] } }), 'x', /data_offsets.*nothing/],
    ['one offset', fileOf({ x: entry([1], [0]) }, 4), 'x', /data_offsets/],
    ['three offsets', fileOf({ x: entry([1], [0, 4, 8]) }, 4), 'x', /data_offsets/],
    ['a negative offset', fileOf({ x: entry([1], [-4, 0]) }, 4), 'x', /data_offsets/],
    ['offsets the wrong way round', fileOf({ x: entry([1], [4, 0]) }, 4), 'x', /data_offsets/],
    [
      'offsets beyond the data',
      fileOf({ x: entry([2], [0, 8]) }, 4),
      'safetensors data',
      /expected 8 bytes, got 4, as of a download that was cut off/,
    ],
    [
      'offsets beyond all numbers',
      fileOf('{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,1e999]}}', 4),
      'x',
      /a begin and an end, got \[0, Infinity\]/,
    ],
    ['fewer bytes than the shape', fileOf({ x: entry([3], [0, 8]) }, 8), 'x', /12 bytes for F32 \(3\), got 8/],
    ['more bytes than the shape', fileOf({ x: entry([1], [0, 8]) }, 8), 'x', /4 bytes/],
    ['half an element', fileOf({ x: entry([1], [0, 3], 'F16') }, 3), 'x', /2 bytes for F16 \(1\), got 3/],
    ['half of 8 bytes', fileOf({ x: entry([2], [0, 12], 'I64') }, 12), 'x', /16 bytes for I64 \(2\), got 12/],
    ['half a complex number', fileOf({ x: entry([1], [0, 4], 'C64') }, 4), 'x', /8 bytes for C64 \(1\), got 4/],
    ['numbers that end inside of a byte', fileOf({ x: entry([3], [0, 2], 'F4') }, 2), 'x', /whole bytes, got F4 \(3\)/],
    ['6-bit numbers that end inside of a byte', fileOf({ x: entry([2, 3], [0, 5], 'F6_E2M3') }, 5), 'x', /whole bytes/],
    ['a byte too many of 4-bit numbers', fileOf({ x: entry([4], [0, 3], 'F4') }, 3), 'x', /2 bytes for F4 \(4\), got 3/],
    ['bits beyond 2⁵³', fileOf({ x: entry([2 ** 50], [0, 0], 'F64') }), 'x', /more than 2⁵⁰ bytes/],
    ['tensors that overlap', fileOf({ x: f32, y: entry([1], [2, 6]) }, 6), 'safetensors data', /next at 4, got one at 2/],
    ['the same bytes twice', fileOf({ x: f32, y: f32 }, 4), 'safetensors data', /side by side/],
    ['a gap', fileOf({ x: f32, y: entry([1], [8, 12]) }, 12), 'safetensors data', /next at 4, got one at 8/],
    ['a gap at the beginning', fileOf({ x: entry([1], [4, 8]) }, 8), 'safetensors data', /next at 0/],
    ['a tensor of nothing in a gap', fileOf({ x: f32, y: entry([0], [6, 6]) }, 8), 'safetensors data', /one at 6/],
    ['bytes left over', fileOf({ x: f32 }, 5), 'safetensors data', /4 bytes, got 5/],
    ['data of no tensor', fileOf({}, 1), 'safetensors data', /0 bytes, got 1/],
  ];

  it.each(lies)('refuses %s', (_, file, argument, words) => {
    const error = errorOf(() => readSafetensors(file));
    expect(error.code).toBe('E_FORMAT');
    expect(error.argument).toBe(argument);
    expect(error.message).toMatch(words);
    expect(error.message.length).toBeLessThan(400);
  });

  it('refuses a header of more than 100 MB, whatever it holds', () => {
    const file = new Uint8Array(8 + 100_000_008).fill(0x20);
    new DataView(file.buffer).setBigUint64(0, 100_000_008n, true);
    file.set(encoder.encode('{}'), 8);
    expect(errorOf(() => readSafetensors(file)).message).toMatch(/100000000 bytes, got 100000008/);
  });

  it('takes only bytes', () => {
    for (const wrong of ['text', [1], new Float32Array(4), new DataView(new ArrayBuffer(8)), null]) {
      const error = errorOf(() => readSafetensors(wrong as never));
      expect(error).toMatchObject({ code: 'E_OPTION', argument: 'bytes' });
    }
    expect(readSafetensors(fileOf('{}')).tensors).toEqual({});
    expect(readSafetensors(fileOf('{"y":1}'.replace('"y":1', '  '))).metadata).toEqual({});
  });

  it('copies data that is not aligned to its element size, and makes views of the rest', () => {
    const header = JSON.stringify({ flag: entry([1], [0, 1], 'BOOL'), x: entry([1], [1, 5]) });
    const file = fileOf(header.padEnd(Math.ceil(header.length / 8) * 8), 5);
    const { tensors } = readSafetensors(file);
    expect(tensors['flag']?.data.buffer).toBe(file.buffer);
    expect(tensors['x']?.data.buffer).not.toBe(file.buffer);
    expect(new Uint8Array(tensors['x']?.data.buffer ?? new ArrayBuffer(0))).toEqual(new Uint8Array([1, 2, 3, 4]));
  });

  it('reads shared memory', () => {
    const file = fileOf({ x: entry([1], [0, 4], 'I32') }, 4);
    const shared = new Uint8Array(new SharedArrayBuffer(file.length));
    shared.set(file);
    expect(readSafetensors(shared).tensors['x']?.data).toEqual(new Int32Array([0x03020100]));
  });

  it(`throws E_FORMAT or reads correctly for truncated and damaged files (seed ${runSeed})`, () => {
    const pick = random(runSeed);
    let read = 0;
    const readOrRefuse = (file: Uint8Array): void => {
      try {
        const { tensors } = readSafetensors(file);
        read += 1;
        for (const tensor of Object.values(tensors)) {
          const { data } = tensor;
          expect(data.length).toBe(lengthOf(tensor));
          expect(data.byteLength).toBeLessThanOrEqual(file.length);
        }
      } catch (error) {
        if (!(error instanceof MultiheadError)) throw error;
        expect(error.code).toBe('E_FORMAT');
      }
    };
    const whole = writeSafetensors(
      {
        a: { shape: [2, 3], data: pick.floats(6) },
        b: { shape: [5], data: new Uint16Array(5), dtype: 'bf16' },
        c: { shape: [3], data: new Uint8Array(3) },
        d: { dtype: 'i64', shape: [1], data: new BigInt64Array(1) },
        e: { dtype: 'f6_e2m3', shape: [4], data: new Uint8Array(3) },
      },
      { metadata: { format: 'pt' } },
    );
    for (let length = 0; length < whole.length; length += 1) {
      errorOf(() => readSafetensors(whole.subarray(0, length)));
    }
    for (let round = 0; round < 20_000; round += 1) {
      const damaged = whole.slice();
      for (let change = pick.int(1, 3); change > 0; change -= 1) {
        damaged[pick.int(0, damaged.length - 1)] = pick.int(0, 255);
      }
      readOrRefuse(damaged);
    }
    // Damage to the tensors' data alone cannot be detected.
    expect(read).toBeGreaterThan(0);
  });
});

describe('writeSafetensors', () => {
  const x = { shape: [2], data: new Float32Array(2) };
  const wrong: [string, () => unknown, MultiheadError['code'], string][] = [
    ['null', () => writeSafetensors(null as never), 'E_OPTION', 'tensors'],
    ['a list', () => writeSafetensors([x] as never), 'E_OPTION', 'tensors'],
    ['the name of the metadata', () => writeSafetensors({ __metadata__: x }), 'E_OPTION', 'name'],
    ['half a surrogate pair', () => writeSafetensors({ '\udc00': x }), 'E_OPTION', 'name'],
    ['a number', () => writeSafetensors({ x: 3 as never }), 'E_OPTION', 'x'],
    ['number[]', () => writeSafetensors({ x: { shape: [1], data: [1] } as never }), 'E_OPTION', 'x'],
    ['doubles', () => writeSafetensors({ x: { shape: [1], data: new Float64Array(1) } as never }), 'E_OPTION', 'x'],
    ['16 bits without a dtype', () => writeSafetensors({ x: { shape: [1], data: new Uint16Array(1) } as never }), 'E_OPTION', 'x'],
    ['integers as floats', () => writeSafetensors({ x: { shape: [1], data: new Int32Array(1), dtype: 'f32' } as never }), 'E_OPTION', 'x'],
    ['floats as integers', () => writeSafetensors({ x: { ...x, dtype: 'i32' } as never }), 'E_OPTION', 'x'],
    ['bytes as 64-bit integers', () => writeSafetensors({ x: { shape: [1], data: new Uint8Array(8), dtype: 'i64' } as never }), 'E_OPTION', 'x'],
    ['64-bit integers without a dtype', () => writeSafetensors({ x: { shape: [1], data: new BigInt64Array(1) } as never }), 'E_OPTION', 'x'],
    ['a dtype in capitals', () => writeSafetensors({ x: { shape: [1], data: new Int32Array(1), dtype: 'I32' } as never }), 'E_OPTION', 'x'],
    ['one float of a complex number', () => writeSafetensors({ x: { shape: [1], data: new Float32Array(1), dtype: 'c64' } }), 'E_SHAPE', 'x'],
    ['three numbers of 4 bits', () => writeSafetensors({ x: { shape: [3], data: new Uint8Array(2), dtype: 'f4' } }), 'E_SHAPE', 'x'],
    ['no shape', () => writeSafetensors({ x: { data: new Float32Array(1) } as never }), 'E_SHAPE', 'x'],
    ['a hole in a shape', () => writeSafetensors({ x: { shape: Array<number>(1), data: x.data } }), 'E_SHAPE', 'x'],
    ['another length', () => writeSafetensors({ x: { ...x, shape: [3] } }), 'E_SHAPE', 'x'],
    ['another length of integers', () => writeSafetensors({ x: { shape: [2], data: new Int32Array(1), dtype: 'i32' } }), 'E_SHAPE', 'x'],
    ['nine extents', () => writeSafetensors({ x: { shape: Array<number>(9).fill(1), data: new Float32Array(1) } }), 'E_SHAPE', 'x'],
    ['metadata of numbers', () => writeSafetensors({ x }, { metadata: { a: 1 as never } }), 'E_OPTION', 'metadata.a'],
    ['metadata that is a text', () => writeSafetensors({ x }, { metadata: 'a' as never }), 'E_OPTION', 'metadata'],
    ['metadata beyond Unicode', () => writeSafetensors({ x }, { metadata: { a: '\ud800' } }), 'E_OPTION', 'metadata.a'],
    ['an unknown dtype', () => writeSafetensors({ x }, { dtype: 'f64' as never }), 'E_OPTION', 'dtype'],
    ['an unknown option', () => writeSafetensors({ x }, { format: 'pt' } as never), 'E_OPTION', 'format'],
  ];
  it.each(wrong)('refuses %s', (_, fn, code, argument) => {
    expect(errorOf(fn)).toMatchObject({ code, argument });
  });
});
