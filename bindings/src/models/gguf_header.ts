// The header of a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): settings, arrays and tensors. The core makes
// Hugging Face's settings and names of them (src/models/gguf_settings.h).

import { otherTypes, storedTypes } from '../generated/stored_types.js';
import { printable, utf8Decoder } from '../runtime/text.js';
import { formatError, mostHeaderBytes } from '../safetensors/format.js';
import type { Bytes } from '../safetensors/source.js';
import type { Settings } from './config.js';
import { isGguf } from './folder.js';
import type { StoredEntry } from './weight_file.js';

export interface GgufHeader {
  /** By their names in the file; an array is null, and the elements of a short one of numbers have its name with their own numbers. */
  readonly settings: Settings;
  /** The values of a setting that is an array; undefined for another one. Made anew by each call. */
  list(name: string): unknown[] | undefined;
  readonly entries: readonly StoredEntry[];
  /** Offset of the first tensor in the file. */
  readonly first: number;
  /** Reads the file. Bytes behind the header that were read with it are kept, because a response can be read only once. */
  readonly bytes: Bytes;
}

const [textType, arrayType] = [8, 9];

/** The bytes of a value, and how it is read, by the number of its type. */
const scalars: readonly (readonly [bytes: number, read: (view: DataView, at: number) => boolean | number])[] = [
  [1, (view, at) => view.getUint8(at)],
  [1, (view, at) => view.getInt8(at)],
  [2, (view, at) => view.getUint16(at, true)],
  [2, (view, at) => view.getInt16(at, true)],
  [4, (view, at) => view.getUint32(at, true)],
  [4, (view, at) => view.getInt32(at, true)],
  [4, (view, at) => view.getFloat32(at, true)],
  [1, (view, at) => view.getUint8(at) !== 0],
  [0, () => 0], // text
  [0, () => 0], // array
  [8, (view, at) => Number(view.getBigUint64(at, true))],
  [8, (view, at) => Number(view.getBigInt64(at, true))],
  [8, (view, at) => view.getFloat64(at, true)],
];

/** The bytes that were read so far end inside the header. */
class TooShort extends Error {}

class Reader {
  at: number;
  readonly #bytes: Uint8Array;
  readonly #view: DataView;

  constructor(bytes: Uint8Array, at: number) {
    this.at = at;
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  }

  skip(count: number): number {
    const { at } = this;
    if (count > this.#bytes.length - at) throw new TooShort();
    this.at += count;
    return at;
  }

  u32 = (): number => this.#view.getUint32(this.skip(4), true);
  u64 = (): number => Number(this.#view.getBigUint64(this.skip(8), true));

  text(): string {
    const count = this.u64();
    const at = this.skip(count);
    return utf8Decoder().decode(this.#bytes.subarray(at, at + count));
  }

  value(type: number, name: string): boolean | number | string {
    if (type === textType) return this.text();
    const scalar = scalars[type];
    if (scalar === undefined || type === arrayType) throw formatError(printable(name), 'a type of 0 to 12', String(type));
    return scalar[1](this.#view, this.skip(scalar[0]));
  }

  /** Passes over an array. */
  skipArray(name: string, depth = 0): void {
    const type = this.u32();
    const count = this.u64();
    const bytes = scalars[type]?.[0];
    if (bytes === undefined || (type === arrayType && depth === 4)) throw formatError(printable(name), 'an array of known types', 'another one');
    if (bytes > 0) this.skip(bytes * count);
    else {
      for (let i = 0; i < count; i += 1) {
        if (type === arrayType) this.skipArray(name, depth + 1);
        else this.skip(this.u64());
      }
    }
  }
}

/** The limits of the C++ reader, src/models/io/gguf.cc. */
const [mostTensors, mostSettings, mostAlignment, mostNumbers, mostElements] = [2 ** 20, 2 ** 16, 2 ** 20, 2 ** 48, 1024];

function readEntry(reader: Reader): StoredEntry {
  const name = reader.text();
  const rank = reader.u32();
  const refuse = (expected: string, got: string) => formatError(printable(name), expected, got);
  if (rank > 4) throw refuse('at most 4 axes', String(rank));
  // The innermost axis comes first in the file.
  const shape = Array.from({ length: rank }, () => reader.u64()).reverse();
  if (shape.reduce((product, extent) => product * Math.max(1, extent), 1) > mostNumbers) throw refuse('at most 2^48 numbers', 'more');
  const number = reader.u32();
  const begin = reader.u64();
  const form = storedTypes.find((each) => each[0] === number);
  if (form === undefined) {
    // Its size is not known. The core refuses it if the model needs it.
    return { name, type: otherTypes.find((each) => each[0] === number)?.[1] ?? `type ${number}`, shape, begin, end: begin };
  }
  const [, type, numbers, bytes] = form;
  const columns = shape.at(-1) ?? 1;
  if (columns % numbers !== 0) throw refuse(`rows of a multiple of ${numbers} numbers in ${type}`, String(columns));
  const end = begin + (shape.reduce((product, extent) => product * extent, 1) / numbers) * bytes;
  return { name, type, shape, begin, end };
}

/** Reads the header at the begin of `bytes`. Throws TooShort if they end inside it. */
function readHeader(bytes: Uint8Array, size: number): Omit<GgufHeader, 'bytes'> {
  const reader = new Reader(bytes, 4);
  const version = reader.u32();
  if (version !== 2 && version !== 3) throw formatError('GGUF', 'version 2 or 3', String(version));
  const [tensors, count] = [reader.u64(), reader.u64()];
  if (tensors > mostTensors || count > mostSettings) {
    throw formatError('GGUF', `at most ${mostTensors} tensors and ${mostSettings} settings`, `${tensors} and ${count}`);
  }
  const settings: Settings = new Map();
  const arrays = new Map<string, number>();
  for (let i = 0; i < count; i += 1) {
    const name = reader.text();
    if (settings.has(name)) throw formatError(printable(name), 'every setting once', 'it twice');
    const type = reader.u32();
    if (type === arrayType) arrays.set(name, reader.at);
    if (type !== arrayType) {
      settings.set(name, reader.value(type, name));
      continue;
    }
    const elements = new Reader(bytes, reader.at);
    reader.skipArray(name);
    settings.set(name, null);
    const [of, length] = [elements.u32(), elements.u64()];
    if (of === textType || of === arrayType || length > mostElements || name.startsWith('tokenizer.')) continue;
    for (let at = 0; at < length; at += 1) settings.set(`${name}.${at}`, elements.value(of, name));
  }
  const list = (name: string): unknown[] | undefined => {
    const at = arrays.get(name);
    if (at === undefined) return undefined;
    const values = new Reader(bytes, at);
    const type = values.u32();
    if (type === arrayType) return undefined;
    return Array.from({ length: values.u64() }, () => values.value(type, name));
  };
  const entries = Array.from({ length: tensors }, () => readEntry(reader));
  const alignment = settings.get('general.alignment') ?? 32;
  if (!Number.isInteger(alignment) || (alignment as number) < 1 || (alignment as number) > mostAlignment) {
    throw formatError('general.alignment', `1 to ${mostAlignment}`, String(alignment));
  }
  const first = Math.ceil(reader.at / (alignment as number)) * (alignment as number);
  reader.skip(first - reader.at);
  for (const { name, begin, end } of entries) {
    if (end <= size - first) continue;
    throw formatError(printable(name), `${end - begin} bytes from byte ${begin} of the tensors on`, `a file with ${size - first}`);
  }
  return { settings, list, first, entries };
}

function joined(a: Uint8Array, b: Uint8Array): Uint8Array<ArrayBuffer> {
  const both = new Uint8Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}

/** Reads the header of a file in pieces. Throws `E_FORMAT`. */
export async function readGguf(file: Bytes): Promise<GgufHeader> {
  const { size = Infinity } = file;
  let header = new Uint8Array();
  for (let most = 2 ** 18; ; most *= 2) {
    const asked = most - header.length;
    const more = await file.read(header.length, asked);
    header = joined(header, more);
    if (!isGguf(header)) throw formatError('GGUF', 'a GGUF file', 'another one');
    try {
      const read = readHeader(header, size);
      const kept = { begin: read.first, bytes: header.slice(read.first) };
      return { ...read, bytes: { size: file.size, read: (offset, count) => readKept(file, kept, offset, count) } };
    } catch (error) {
      if (!(error instanceof TooShort)) throw error;
    }
    if (more.length < asked) throw formatError('GGUF', 'the whole header', `a file of ${header.length} bytes that ends in it`);
    if (most >= mostHeaderBytes) throw formatError('GGUF', `a header of at most ${mostHeaderBytes} bytes`, 'a longer one');
  }
}

/** Reads bytes behind the header, of which `kept` has the first. */
async function readKept(file: Bytes, kept: { begin: number; bytes: Uint8Array }, offset: number, count: number): Promise<Uint8Array<ArrayBuffer>> {
  const begin = kept.bytes.subarray(offset - kept.begin, offset - kept.begin + count);
  const rest = count - begin.length;
  return rest === 0 ? new Uint8Array(begin) : joined(begin, await file.read(offset + begin.length, rest));
}
