// writeSafetensors(): writes headers that every reader accepts, and aligns data to its element size.

import { MultiheadError, optionError, shapeError } from '../runtime/errors.js';
import { halfToFloats, roundDoublesToHalf, roundToHalf } from '../runtime/half.js';
import { checkChoice, plain, readOptions } from '../runtime/options.js';
import { elements, formatShape, parameterRanks } from '../runtime/shape.js';
import { allDTypes, checkData, checkShape, coreOf, describe, floatDTypes, isHalf, isProxyOfTensor } from '../runtime/tensor.js';
import { quoted, toUtf8 } from '../runtime/text.js';
import { lengthOf, pristine, typedArrayName } from '../runtime/typed_arrays.js';
import type { SafetensorsDType, SafetensorsSource, SafetensorsTensor, WriteSafetensorsOptions } from '../types/safetensors.js';
import type { DType, FloatDType, Shape } from '../types/tensor.js';
import { isObject, isUnicode, lengthBytes, metadataName, mostHeaderBytes, storedBytes, storedDTypes, storedName, storedTypes } from './format.js';

/**
 * Makes a safetensors file (huggingface.co/docs/safetensors). Needs no `load()`.
 *
 * Tensors are sorted by element size, largest first, and else keep the order of `tensors`. As the
 * header's length is a multiple of 8, all data is aligned and readers need not copy it.
 *
 * @returns the file, in newly allocated memory
 * @throws {MultiheadError} `E_OPTION` for a name or string that UTF-8 cannot encode, the name
 * `__metadata__`, an unknown option, or data of another type; `E_SHAPE` for data whose length does not
 * match its shape, or more than 8 extents; `E_DISPOSED`; `E_MEMORY`
 */
export function writeSafetensors(tensors: SafetensorsSource, options: WriteSafetensorsOptions = {}): Uint8Array<ArrayBuffer> {
  if (!isObject(tensors)) throw optionError('tensors', 'an object of tensors', describe(tensors));
  const { metadata, dtype } = readOptions(options, { metadata: plain, dtype: plain }, 'writeSafetensors');
  if (dtype !== undefined) checkChoice(dtype, floatDTypes, 'dtype');

  const checked = Object.entries(tensors).map(([name, value]) => ({ name, tensor: checkTensor(name, value) }));
  const parts = checked
    .map(({ name, tensor }) => ({ name, tensor: converted(tensor, dtype) }))
    .sort((a, b) => b.tensor.data.BYTES_PER_ELEMENT - a.tensor.data.BYTES_PER_ELEMENT);
  const header = headerOf(
    parts.map(({ name, tensor: { dtype, shape, data } }) => ({ name, dtype, shape, bytes: data.byteLength })),
    metadata === undefined ? undefined : checkMetadata(metadata),
  );
  const file = allocate(parts.reduce((sum, { tensor }) => sum + tensor.data.byteLength, header.length));
  file.set(header);
  let at = header.length;
  for (const { data } of parts.map(({ tensor }) => tensor)) {
    file.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), at);
    at += data.byteLength;
  }
  return file;
}

function checkTensor(name: string, value: unknown): SafetensorsTensor {
  if (name === metadataName || !isUnicode(name)) throw optionError('name', `one in Unicode other than ${metadataName}`, quoted(name));
  const core = coreOf(value);
  if (core !== undefined) {
    core.assertLive(name);
    const { dtype, shape } = core;
    return { dtype, shape, data: core.view() } as SafetensorsTensor;
  }
  if (!isObject(value) || isProxyOfTensor(value)) throw optionError(name, 'a tensor or { data, shape }', describe(value));
  const { data: numbers, dtype: stated } = value;
  const shape = checkShape(value['shape'], name, parameterRanks);
  if (isStoredOnly(stated)) {
    const data = checkStored(stated, name, numbers, shape);
    return { dtype: stated, shape, data } as SafetensorsTensor;
  }
  const { dtype, data } = checkData(numbers, shape, allDTypes, name, stated);
  return { dtype, shape, data: pristine(data, elements(shape)) } as SafetensorsTensor;
}

/** True for a dtype of files that tensors of this package cannot have. */
const isStoredOnly = (dtype: unknown): dtype is Exclude<SafetensorsDType, DType> =>
  storedDTypes.includes(dtype as SafetensorsDType) && !allDTypes.includes(dtype as DType);

function checkStored(dtype: SafetensorsDType, argument: string, data: unknown, shape: readonly number[]): SafetensorsTensor['data'] {
  const { array } = storedTypes[dtype];
  if (typedArrayName(data) !== array.name) {
    const article = array.name.startsWith('Int') ? 'an' : 'a';
    throw optionError(argument, `${article} ${array.name} with dtype "${dtype}"`, describe(data));
  }
  const numbers = data as SafetensorsTensor['data'];
  const length = storedBytes(dtype, shape) / array.BYTES_PER_ELEMENT;
  const got = lengthOf(numbers);
  if (got === length) return pristine(numbers, length);
  throw shapeError(
    argument,
    Number.isInteger(length) ? `${length} elements for shape ${formatShape(shape)}` : `a shape whose numbers fill whole bytes as "${dtype}"`,
    Number.isInteger(length) ? `${got}` : formatShape(shape),
  );
}

/** Converts a tensor to another dtype; tensors other than floats of 16, 32 or 64 bits are unchanged. */
function converted(tensor: SafetensorsTensor, dtype: FloatDType | undefined): SafetensorsTensor {
  if (dtype === undefined || dtype === tensor.dtype) return tensor;
  const { shape } = tensor;
  switch (tensor.dtype) {
    case 'f64': {
      const { data } = tensor;
      return isHalf(dtype) ? { dtype, shape, data: roundDoublesToHalf(data, dtype) } : { dtype, shape, data: Float32Array.from(data) };
    }
    case 'f32':
      return isHalf(dtype) ? { dtype, shape, data: roundToHalf(tensor.data, dtype) } : tensor;
    case 'f16':
    case 'bf16': {
      const data = halfToFloats(tensor.data, tensor.dtype);
      return isHalf(dtype) ? { dtype, shape, data: roundToHalf(data, dtype) } : { dtype, shape, data };
    }
    default:
      return tensor;
  }
}

function checkMetadata(metadata: unknown): Record<string, string> {
  if (!isObject(metadata)) throw optionError('metadata', 'an object of texts', describe(metadata));
  for (const [name, text] of Object.entries(metadata)) {
    if (typeof text === 'string' && isUnicode(name + text)) continue;
    throw optionError(`metadata.${name}`, 'a text in Unicode', describe(text));
  }
  return metadata as Record<string, string>;
}

/** A tensor of a file. */
interface Stored {
  readonly name: string;
  readonly dtype: SafetensorsDType;
  readonly shape: Shape;
  readonly bytes: number;
}

/** The begin of a file: its length, and the header as JSON in UTF-8, padded with spaces to a multiple of 8 bytes. */
export function headerOf(tensors: readonly Stored[], metadata: Readonly<Record<string, string>> | undefined): Uint8Array<ArrayBuffer> {
  const entries: [string, unknown][] = metadata === undefined ? [] : [[metadataName, metadata]];
  let end = 0;
  for (const { name, dtype, shape, bytes } of tensors) {
    const data_offsets = [end, (end += bytes)];
    entries.push([name, { dtype: storedName(dtype), shape, data_offsets }]);
  }
  const text = toUtf8(JSON.stringify(Object.fromEntries(entries)));
  const length = Math.ceil(text.length / 8) * 8;
  if (length > mostHeaderBytes) throw optionError('tensors', `a header of at most ${mostHeaderBytes} bytes`, `${length} bytes of names and metadata`);
  const header = new Uint8Array(lengthBytes + length).fill(0x20);
  new DataView(header.buffer).setBigUint64(0, BigInt(length), true);
  header.set(text, lengthBytes);
  return header;
}

function allocate(bytes: number): Uint8Array<ArrayBuffer> {
  try {
    return new Uint8Array(bytes);
  } catch (cause) {
    const parts = {
      argument: 'writeSafetensors',
      expected: `${bytes} bytes`,
      got: 'no memory',
      cause,
    };
    throw new MultiheadError('E_MEMORY', parts);
  }
}
