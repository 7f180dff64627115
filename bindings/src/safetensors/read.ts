// readSafetensors(). Files may come from untrusted sources, so every field is checked. Uses no
// WebAssembly memory.

import { fileKinds } from '../generated/file_kinds.js';
import { optionError } from '../runtime/errors.js';
import { formatShape, parameterRanks } from '../runtime/shape.js';
import { describe } from '../runtime/tensor.js';
import { utf8Decoder } from '../runtime/text.js';
import { isArrayBuffer, pristine, typedArrayName } from '../runtime/typed_arrays.js';
import type { SafetensorsDType, SafetensorsFile, SafetensorsParameter, SafetensorsTensor } from '../types/safetensors.js';
import { cutOff, emptyRecord, formatError, inWords, isCount, isObject, isUnicode, lengthBytes, metadataName, mostHeaderBytes } from './format.js';
import { storedBytes, storedDTypes, storedName, storedTypes } from './format.js';

/**
 * Reads a safetensors file (huggingface.co/docs/safetensors). Needs no `load()`.
 *
 * A tensor's `data` is a view of `bytes` if its offset is a multiple of its element size, as in files
 * that this package and PyTorch's library write; otherwise it is a copy.
 *
 * @throws {MultiheadError} `E_FORMAT`, whose `argument` names the tensor: if the header is longer than
 * the file or 100 MB, is not a JSON object in UTF-8, or has a name twice; if a tensor has an unknown
 * dtype, more than 8 extents, offsets outside the data, or a size that does not match its shape; if
 * tensors overlap or leave gaps. `E_OPTION` for `bytes` of another type.
 */
export function readSafetensors(bytes: ArrayBuffer | Uint8Array): SafetensorsFile {
  const file = asBytes(bytes);
  const end = lengthBytes + headerLength(file, file.length);
  // Copied, because TextDecoder rejects a view of a SharedArrayBuffer.
  const { entries, metadata } = readHeader(file.slice(lengthBytes, end), file.length - end);

  const tensors = emptyRecord<SafetensorsTensor>();
  const stateDict = emptyRecord<SafetensorsParameter>();
  for (const entry of entries) {
    const tensor = tensorOf(entry, file.subarray(end + entry.begin, end + entry.end));
    tensors[entry.name] = tensor;
    const parameter = asParameter(tensor);
    if (parameter !== undefined) stateDict[entry.name] = parameter;
  }
  return { tensors, stateDict, metadata };
}

/**
 * The bytes as a plain Uint8Array. Node's Buffer is a Uint8Array whose slice() makes no copy, which
 * the code below relies on.
 */
function asBytes(bytes: unknown): Uint8Array {
  if (typedArrayName(bytes) === 'Uint8Array') return pristine(bytes as Uint8Array);
  // new Uint8Array() throws for a detached buffer, whose length is 0.
  if (isArrayBuffer(bytes)) return bytes.byteLength === 0 ? new Uint8Array() : new Uint8Array(bytes);
  throw optionError('bytes', 'an ArrayBuffer or a Uint8Array', describe(bytes));
}

// ---- The header ----

/**
 * Reads the length of the header from the begin of a file. Throws `E_FORMAT`.
 *
 * @param size of the file; Infinity if it is unknown
 */
export function headerLength(begin: Uint8Array, size: number): number {
  const padded = new DataView(new ArrayBuffer(lengthBytes));
  begin.subarray(0, lengthBytes).forEach((byte, at) => padded.setUint8(at, byte));
  const bytes = padded.getUint32(4, true) * 2 ** 32 + padded.getUint32(0, true);
  const left = size - lengthBytes;
  // Such files are text or longer than a header may be: the fourth byte of the length is 0 in headers below 16 MB.
  const isLong = left === Infinity || bytes > Math.min(left, mostHeaderBytes);
  const kind = isLong && padded.getUint8(3) !== 0 ? kindOfFile(begin) : undefined;
  if (kind !== undefined) throw formatError('safetensors', 'a safetensors file', kind);
  if (begin.length < lengthBytes) throw formatError('safetensors', `at least ${lengthBytes} bytes`, `${begin.length}`);
  if (bytes > mostHeaderBytes) throw formatError('safetensors header', `at most ${mostHeaderBytes} bytes`, `${bytes}: this is no safetensors file`);
  if (bytes > left) throw formatError('safetensors header', `${bytes} bytes`, `${left}${cutOff}`);
  return bytes;
}

/** What a file of another format is, and what to do; undefined for other files. */
export function kindOfFile(begin: Uint8Array): string | undefined {
  const text = String.fromCharCode(...begin.subarray(0, lengthBytes));
  return fileKinds.find(([start]) => text.startsWith(start.slice(0, lengthBytes)))?.[1];
}

/** A tensor of the header; its bytes are `begin` to `end` − 1 after the header. */
export interface Entry {
  readonly name: string;
  readonly dtype: SafetensorsDType;
  readonly shape: number[];
  readonly begin: number;
  readonly end: number;
}

/**
 * Reads the header, and checks that its tensors, which are given in its order, cover the data. Throws `E_FORMAT`.
 *
 * @param bytes after the header; Infinity if the number is unknown
 */
export function readHeader(encoded: Uint8Array, bytes: number) {
  const json = parseHeader(encoded);
  const names = Object.keys(json).filter((name) => name !== metadataName);
  const entries = names.map((name) => readEntry(name, json[name]));
  checkCovered(entries, bytes);
  return { entries, metadata: readMetadata(json[metadataName]) };
}

/** The tensors in the order of their bytes. */
export const inFileOrder = (entries: readonly Entry[]): Entry[] => [...entries].sort((a, b) => a.begin - b.begin || a.end - b.end);

function parseHeader(encoded: Uint8Array): Record<string, unknown> {
  const header = 'safetensors header';
  let text: string;
  let json: unknown;
  try {
    // ignoreBOM keeps a byte order mark in the text, so that JSON.parse() rejects it.
    text = utf8Decoder({ fatal: true, ignoreBOM: true }).decode(encoded);
    json = JSON.parse(text);
  } catch (error) {
    const got = error instanceof Error ? error.message : String(error);
    throw formatError(header, 'a JSON object in UTF-8', got);
  }
  if (!isObject(json) || !text.startsWith('{')) throw formatError(header, 'a JSON object from its first byte on', inWords(json));
  const twice = repeatedKey(text);
  if (twice !== undefined) throw formatError(header, 'every name once in its object', `${inWords(twice)} twice`);
  return json;
}

/**
 * Returns a key that occurs twice in one object of `text`, which is valid JSON. JSON.parse() accepts such text and
 * keeps the last value.
 */
function repeatedKey(text: string): string | undefined {
  const open: Set<string>[] = [];
  for (let at = 0; at < text.length; at += 1) {
    const letter = text[at];
    if (letter === '{') open.push(new Set());
    else if (letter === '}') open.pop();
    else if (letter === '"') {
      const end = closingQuote(text, at);
      const next = /[^ \t\n\r]/g;
      next.lastIndex = end + 1;
      if (next.exec(text)?.[0] === ':') {
        // Compare decoded keys: "a" and "\u0061" are the same name.
        const key = JSON.parse(text.slice(at, end + 1)) as string;
        if (open.at(-1)?.has(key)) return key;
        open.at(-1)?.add(key);
      }
      at = end;
    }
  }
  return undefined;
}

/** Index of the closing quote of the JSON string that begins at `open`. */
function closingQuote(text: string, open: number): number {
  let at = open + 1;
  while (text[at] !== '"') at += text[at] === '\\' ? 2 : 1;
  return at;
}

function readMetadata(value: unknown): Record<string, string> {
  const metadata = emptyRecord<string>();
  // Writers of other languages leave no metadata as null.
  if (value === undefined || value === null) return metadata;
  if (!isObject(value)) throw formatError(metadataName, 'an object of texts', inWords(value));
  for (const [name, text] of Object.entries(value)) {
    if (typeof text !== 'string' || !isUnicode(name + text)) throw formatError(metadataName, `a text under ${inWords(name)}`, inWords(text));
    metadata[name] = text;
  }
  return metadata;
}

// ---- Tensors ----

type Range = Pick<Entry, 'begin' | 'end'>;

function readEntry(name: string, entry: unknown): Entry {
  if (!isUnicode(name)) throw formatError('safetensors header', 'names in Unicode', inWords(name));
  if (!isObject(entry)) throw formatError(name, 'an object of dtype, shape and data_offsets', inWords(entry));
  // Safe: JSON.parse() makes even "__proto__" an own property.
  const dtype = storedDTypes.find((known) => storedName(known) === entry['dtype']);
  if (dtype === undefined) {
    const expected = `a dtype of ${storedDTypes.map(storedName).join(', ')}`;
    throw formatError(name, expected, inWords(entry['dtype']));
  }
  const shape = readShape(name, entry['shape']);
  const range = readRange(name, entry['data_offsets']);
  const size = storedBytes(dtype, shape);
  const given = `${storedName(dtype)} ${formatShape(shape)}`;
  if (size !== Infinity && !Number.isInteger(size)) throw formatError(name, 'numbers that fill whole bytes', given);
  if (size !== range.end - range.begin) {
    const expected = `${size === Infinity ? 'more than 2⁵⁰' : size} bytes for ${given}`;
    throw formatError(name, expected, `${range.end - range.begin}`);
  }
  return { name, dtype, shape, ...range };
}

/** A tensor with a view of its bytes, or a copy if they are not aligned. */
export function tensorOf({ dtype, shape }: Entry, part: Uint8Array): SafetensorsTensor {
  const { array } = storedTypes[dtype];
  const element = array.BYTES_PER_ELEMENT;
  const { buffer, byteOffset } = part.byteOffset % element === 0 ? part : part.slice();
  const data = new array(buffer, byteOffset, part.length / element);
  return { dtype, shape, data } as SafetensorsTensor;
}

/** Converts a tensor to a parameter of a module; undefined for dtypes that modules do not accept. */
export function asParameter(tensor: SafetensorsTensor): SafetensorsParameter | undefined {
  switch (tensor.dtype) {
    case 'f32':
    case 'f16':
    case 'bf16':
      return tensor;
    case 'f64':
      return { dtype: 'f32', shape: tensor.shape, data: Float32Array.from(tensor.data) };
    default:
      return undefined;
  }
}

function readShape(name: string, shape: unknown): number[] {
  if (Array.isArray(shape) && shape.length <= parameterRanks.most && shape.every(isCount)) return shape;
  const expected = `a shape of at most ${parameterRanks.most} whole numbers ≥ 0`;
  throw formatError(name, expected, inWords(shape));
}

function readRange(name: string, offsets: unknown): Range {
  if (Array.isArray(offsets) && offsets.length === 2 && offsets.every(isCount)) {
    const [begin, end] = offsets as [number, number];
    if (begin <= end) return { begin, end };
  }
  throw formatError(name, 'data_offsets, a begin and an end', inWords(offsets));
}

/** Throws `E_FORMAT` unless the tensors cover the data without gaps and overlaps. */
function checkCovered(entries: readonly Entry[], bytes: number): void {
  const data = 'safetensors data';
  let next = 0;
  for (const { begin, end } of inFileOrder(entries)) {
    if (begin !== next) throw formatError(data, `tensors side by side, the next at ${next}`, `one at ${begin}`);
    next = end;
  }
  if (next === bytes || bytes === Infinity) return;
  throw formatError(data, `${next} bytes`, `${bytes}${bytes < next ? cutOff : ''}`);
}
