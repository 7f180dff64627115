// Reads the weights of a folder into the core: headers first, then each needed tensor in pieces.

import { weightTypes } from '../generated/tables.js';
import * as wire from '../generated/wire.js';
import { abortedError } from '../runtime/abort.js';
import { MultiheadError } from '../runtime/errors.js';
import { outOfMemory } from '../runtime/memory.js';
import { call, checkStatus, type Operands, type Runtime } from '../runtime/operands.js';
import { toUtf8 } from '../runtime/text.js';
import { formatError, inWords, isObject, storedName } from '../safetensors/format.js';
import { openHeader } from '../safetensors/source.js';
import type { Entry } from '../safetensors/read.js';
import type { ModelWeights } from '../types/models.js';
import type { Int32, Int64, Span, Uint32 } from '../types/wire.js';
import { flattened, parseObject, WireList } from './config.js';
import { type Folder, type OpenFile, requiredText } from './folder.js';

/** Bytes that are read at a time. */
const pieceBytes = 4 * 2 ** 20;

/** The core's memory cannot grow further: the linker's MAXIMUM_MEMORY. */
const mostMemory = 4095 * 2 ** 20;

interface LoadedFile {
  readonly name: string;
  readonly file: OpenFile;
  readonly first: number;
  readonly entries: readonly Entry[];
}

/** Names of the files with weights. Throws `E_FORMAT`. */
async function weightFiles(folder: Folder): Promise<string[]> {
  const indexName = 'model.safetensors.index.json';
  const index = await folder.text(indexName);
  if (index !== undefined) {
    const map = parseObject(indexName, index)['weight_map'];
    const names = isObject(map) ? Object.values(map) : [];
    if (names.length > 0 && names.every((name) => typeof name === 'string' && !/[/\\]/.test(name))) {
      return [...new Set(names as string[])];
    }
    throw formatError(indexName, 'weight_map, an object of tensors and names of files', inWords(map));
  }
  const single = (folder.names ?? []).filter((name) => name.endsWith('.safetensors'));
  return single.length === 1 ? single : ['model.safetensors'];
}

/** An error about a header, with the name of the file, because a model may have several. */
function inFile(name: string, error: unknown): unknown {
  if (!(error instanceof MultiheadError) || error.code !== 'E_FORMAT') return error;
  const { argument, expected, got } = error;
  return new MultiheadError('E_FORMAT', { argument: `${name}: ${argument}`, expected, got, cause: error });
}

/** Opens all files and reads their headers; closes those that are open if one fails. */
async function openFiles(folder: Folder): Promise<LoadedFile[]> {
  const opened: LoadedFile[] = [];
  try {
    for (const name of await weightFiles(folder)) {
      const file = await folder.open(name);
      if (file === undefined) throw formatError(name, 'a file of this name in the folder', 'none');
      const loaded = { name, file, first: 0, entries: [] };
      const at = opened.push(loaded) - 1;
      const { first, entries } = await openHeader(file.bytes).catch((error: unknown) => {
        throw inFile(name, error);
      });
      opened[at] = { ...loaded, first, entries };
    }
    return opened;
  } catch (error) {
    await closeFiles(opened);
    throw error;
  }
}

const closeFiles = async (files: readonly LoadedFile[]): Promise<void> => {
  await Promise.all(files.map(({ file }) => file.close()));
};

function textSpan(operands: Operands, runtime: Runtime, text: string, argument: string): Span<'text'> {
  const bytes = toUtf8(text);
  const { address } = operands.temporary(bytes.length, argument);
  new Uint8Array(runtime.heap.buffer as ArrayBuffer, address, bytes.length).set(bytes);
  return { address, length: bytes.length as Uint32 };
}

function numberSpan(operands: Operands, runtime: Runtime, numbers: Float64Array, argument: string): Span<'f64'> {
  const { address } = operands.temporary(numbers.byteLength, argument);
  new Float64Array(runtime.heap.buffer as ArrayBuffer, address, numbers.length).set(numbers);
  return { address, length: numbers.length as Uint32 };
}

const typeCode = (weights: ModelWeights | undefined): Int64 => (weights === undefined ? -1 : (weightTypes[weights] as Int64));

/** Makes a loader in the core. Throws `E_OPTION`, `E_FORMAT`. */
function makeLoader(runtime: Runtime, config: WireList, tensors: WireList, weights: ModelWeights | undefined): Int32 {
  return call(runtime, (operands) => {
    const settings = textSpan(operands, runtime, config.texts, 'config.json');
    const settingNumbers = numberSpan(operands, runtime, config.numbers, 'config.json');
    const names = textSpan(operands, runtime, tensors.texts, 'safetensors');
    const shapes = numberSpan(operands, runtime, tensors.numbers, 'safetensors');
    wire.modelLoader(runtime.args, settings, settingNumbers, names, shapes, typeCode(weights));
    return operands.make(() => runtime.raw.modelLoaderCreate());
  });
}

/** Throws `E_MEMORY` if weights of this size do not fit, with the type that would. */
function checkFits(runtime: Runtime, bytes: number, smaller: () => string | undefined): void {
  const left = mostMemory - runtime.heap.info().bytes - 2 * pieceBytes;
  if (bytes <= left) return;
  const advice = smaller();
  const asked = `${(bytes / 2 ** 20).toFixed(0)} MiB for the weights`;
  const error = outOfMemory('weights', asked, mostMemory);
  throw new MultiheadError('E_MEMORY', {
    argument: 'weights',
    expected: asked,
    got: error.got,
    message: `weights: the model needs ${asked}, and WebAssembly has at most ${mostMemory / 2 ** 20} MiB${
      advice === undefined ? '' : `; weights: '${advice}' would fit`
    }`,
  });
}

export interface Reading {
  readonly weights: ModelWeights | undefined;
  readonly signal: AbortSignal | undefined;
  readonly onProgress: ((loaded: number, total: number) => void) | undefined;
}

/** Reads config.json and the weights of a folder. Returns the handle of the model in the core. */
export async function readModel(runtime: Runtime, folder: Folder, reading: Reading): Promise<{ handle: Int32; config: Record<string, unknown> }> {
  const config = parseObject('config.json', await requiredText(folder, 'config.json'));
  const settings = flattened(config);
  const files = await openFiles(folder);
  try {
    return { handle: await readWeights(runtime, settings, files, reading), config };
  } finally {
    await closeFiles(files);
  }
}

async function readWeights(runtime: Runtime, settings: WireList, files: readonly LoadedFile[], reading: Reading): Promise<Int32> {
  const { raw, args, heap } = runtime;
  const { weights, signal, onProgress } = reading;
  const tensors = files.flatMap((file) => file.entries.map((entry) => ({ file, entry })));
  const list = new WireList();
  for (const { entry, file } of tensors) {
    list.text(entry.name, file.name);
    list.text(storedName(entry.dtype), file.name);
    for (const number of [entry.shape.length, ...entry.shape]) list.number(number);
  }
  const bytesOf = (loader: Int32) => {
    raw.modelLoaderNeeded(loader);
    return wire.readNeededTensors(args.results());
  };
  const loader = makeLoader(runtime, settings, list, weights);
  try {
    const { tensors: needed, bytes } = bytesOf(loader);
    checkFits(runtime, bytes, () =>
      (['f16', 'int8', 'int4'] as const).find((type) => {
        const other = makeLoader(runtime, settings, list, type);
        const less = bytesOf(other).bytes;
        raw.modelLoaderRelease(other);
        return less <= mostMemory - heap.info().bytes - 2 * pieceBytes;
      }),
    );
    const sizes = [...needed].map((at) => {
      const { begin, end } = (tensors[at] as (typeof tensors)[number]).entry;
      return end - begin;
    });
    const total = sizes.reduce((sum, size) => sum + size, 0);
    // Responses are read from their begin to their end.
    const inOrder = [...needed].sort((a, b) => {
      const [first, second] = [tensors[a], tensors[b]] as [(typeof tensors)[number], (typeof tensors)[number]];
      return files.indexOf(first.file) - files.indexOf(second.file) || first.entry.begin - second.entry.begin;
    });
    let loaded = 0;
    onProgress?.(loaded, total);
    const piece = heap.allocate(pieceBytes, 'weights');
    try {
      for (const at of inOrder) {
        const { file, entry } = tensors[at] as (typeof tensors)[number];
        for (let begin = entry.begin; begin < entry.end; begin += pieceBytes) {
          const count = Math.min(pieceBytes, entry.end - begin);
          if (signal?.aborted) throw abortedError(signal, 'openModel');
          const data = await file.file.bytes.read(file.first + begin, count);
          if (data.length < count) throw formatError(entry.name, `${count} bytes in ${file.name}`, `${data.length}, the end of the file`);
          runtime.raw.assertAlive();
          new Uint8Array(heap.buffer as ArrayBuffer, piece.address, count).set(data);
          wire.modelBytes(args, { address: piece.address, length: count as Uint32 });
          args.close();
          checkStatus(runtime, raw.modelLoaderGive(loader, at as Int32));
          loaded += count;
          onProgress?.(loaded, total);
        }
      }
    } finally {
      heap.release(piece);
    }
    if (signal?.aborted) throw abortedError(signal, 'openModel');
    return call(runtime, (operands) => {
      args.begin();
      return operands.make(() => raw.modelLoaderFinish(loader));
    });
  } finally {
    if (!raw.dead) raw.modelLoaderRelease(loader);
  }
}
