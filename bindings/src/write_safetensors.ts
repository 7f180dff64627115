// Writing safetensors: headers that every reader accepts, and data at multiples of its element's size.

import { MultiheadError } from './errors.js';
import { halfToFloats, roundToHalf } from './half.js';
import { checkChoice, checkOptions } from './options.js';
import {
  isObject,
  isUnicode,
  lengthBytes,
  metadataName,
  mostHeaderBytes,
  storedTypes,
} from './safetensors_format.js';
import type {
  SafetensorsSource,
  SafetensorsTensor,
  WriteSafetensorsOptions,
} from './safetensors_types.js';
import {
  allDTypes,
  checkData,
  checkShape,
  describe,
  elements,
  floatDTypes,
  formatShape,
  isHalf,
  parameterRanks,
  WasmTensor,
} from './tensor.js';
import type { FloatDType } from './tensor_types.js';
import { typedArrayName } from './typed_arrays.js';

/**
 * Makes a safetensors file (huggingface.co/docs/safetensors). Needs no `load()`.
 *
 * Tensors lie in the order of `tensors`, those of larger elements before those of smaller ones, so
 * that with the header's length a multiple of 8 readers need not copy any.
 *
 * @returns the file, in memory of its own
 * @throws {MultiheadError} `E_OPTION` for a name or a text that UTF-8 cannot say, the name
 * `__metadata__`, an unknown option, or data of another type; `E_SHAPE` for a length that is not
 * that of its shape, or more than 8 extents; `E_DISPOSED`; `E_MEMORY`
 */
export function writeSafetensors(
  tensors: SafetensorsSource,
  options: WriteSafetensorsOptions = {},
): Uint8Array<ArrayBuffer> {
  if (!isObject(tensors)) throw refused('tensors', 'an object of tensors', describe(tensors));
  checkOptions(options, ['metadata', 'dtype'], 'writeSafetensors');
  const { metadata, dtype } = options;
  if (dtype !== undefined) checkChoice(dtype, floatDTypes, 'dtype');

  const parts = Object.entries(tensors)
    .map(([name, value]) => ({ name, tensor: converted(checkTensor(name, value), dtype) }))
    .sort((a, b) => b.tensor.data.BYTES_PER_ELEMENT - a.tensor.data.BYTES_PER_ELEMENT);
  const entries: [string, unknown][] = [];
  if (metadata !== undefined) entries.push([metadataName, checkMetadata(metadata)]);
  let end = 0;
  for (const { name, tensor } of parts) {
    const data_offsets = [end, (end += tensor.data.byteLength)];
    entries.push([
      name,
      { dtype: storedTypes[tensor.dtype].name, shape: tensor.shape, data_offsets },
    ]);
  }

  const header = paddedHeader(entries);
  const file = allocate(lengthBytes + header.length + end);
  new DataView(file.buffer).setUint32(0, header.length, true);
  file.set(header, lengthBytes);
  let at = lengthBytes + header.length;
  for (const { data } of parts.map(({ tensor }) => tensor)) {
    file.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), at);
    at += data.byteLength;
  }
  return file;
}

const refused = (argument: string, expected: string, got: string): MultiheadError =>
  new MultiheadError('E_OPTION', { argument, expected, got });

function checkTensor(name: string, value: unknown): SafetensorsTensor {
  if (name === metadataName || !isUnicode(name)) {
    throw refused('name', `one in Unicode other than ${metadataName}`, JSON.stringify(name));
  }
  if (value instanceof WasmTensor) {
    value.assertLive(name);
    const { dtype, shape, data } = value;
    return { dtype, shape, data } as SafetensorsTensor;
  }
  if (!isObject(value)) throw refused(name, 'a tensor or { data, shape }', describe(value));
  const { data, dtype: stated } = value;
  const shape = checkShape(value['shape'], name, parameterRanks);
  if (stated === 'i32') return { dtype: 'i32', shape, data: checkIntegers(name, data, shape) };
  return { shape, ...checkData(data, shape, allDTypes, name, stated) } as SafetensorsTensor;
}

function checkIntegers(name: string, data: unknown, shape: readonly number[]): Int32Array {
  if (typedArrayName(data) !== 'Int32Array') {
    throw refused(name, 'an Int32Array with dtype "i32"', describe(data));
  }
  const integers = data as Int32Array;
  const size = elements(shape);
  if (integers.length === size) return integers;
  throw new MultiheadError('E_SHAPE', {
    argument: name,
    expected: `${size} elements for shape ${formatShape(shape)}`,
    got: `${integers.length}`,
  });
}

/** Booleans and integers stay what they are. */
function converted(tensor: SafetensorsTensor, dtype: FloatDType | undefined): SafetensorsTensor {
  const { shape, data } = tensor;
  const isFloat = tensor.dtype === 'f32' || isHalf(tensor.dtype);
  if (dtype === undefined || dtype === tensor.dtype || !isFloat) return tensor;
  const floats = isHalf(tensor.dtype)
    ? halfToFloats(data as Uint16Array, tensor.dtype)
    : (data as Float32Array);
  return isHalf(dtype)
    ? { dtype, shape, data: roundToHalf(floats, dtype) }
    : { dtype, shape, data: floats };
}

function checkMetadata(metadata: unknown): Record<string, string> {
  if (!isObject(metadata)) throw refused('metadata', 'an object of texts', describe(metadata));
  for (const [name, text] of Object.entries(metadata)) {
    if (typeof text === 'string' && isUnicode(name + text)) continue;
    throw refused(`metadata.${name}`, 'a text in Unicode', describe(text));
  }
  return metadata as Record<string, string>;
}

/** Padded with spaces to a multiple of 8 bytes. */
function paddedHeader(entries: readonly [string, unknown][]): Uint8Array {
  const text = new TextEncoder().encode(JSON.stringify(Object.fromEntries(entries)));
  const header = new Uint8Array(Math.ceil(text.length / 8) * 8).fill(0x20);
  header.set(text);
  if (header.length <= mostHeaderBytes) return header;
  const expected = `a header of at most ${mostHeaderBytes} bytes`;
  throw refused('tensors', expected, `${header.length} bytes of names and metadata`);
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
