// Reads the weights of a folder for a loader: headers first, then each needed tensor in pieces.

import { abortedError } from '../runtime/abort.js';
import { MultiheadError } from '../runtime/errors.js';
import { formatError, inWords, isObject, storedName } from '../safetensors/format.js';
import { openHeader } from '../safetensors/source.js';
import type { Entry } from '../safetensors/read.js';
import type { ModelWeights } from '../types/models.js';
import { flattened, parseObject, WireList } from './config.js';
import type { ModelEngine, OpenLoader } from './core/engine.js';
import { pieceBytes } from './core/loader.js';
import { type Folder, type OpenFile, requiredText } from './folder.js';

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

export interface Reading {
  readonly weights: ModelWeights | undefined;
  readonly signal: AbortSignal | undefined;
  readonly onProgress: ((loaded: number, total: number) => void) | undefined;
}

/** Reads config.json and the weights of a folder. Returns what runs the model. */
export async function readModel(
  openLoader: OpenLoader,
  folder: Folder,
  reading: Reading,
): Promise<{ engine: ModelEngine; config: Record<string, unknown> }> {
  const config = parseObject('config.json', await requiredText(folder, 'config.json'));
  const settings = flattened(config);
  const files = await openFiles(folder);
  try {
    return { engine: await readWeights(openLoader, settings, files, reading), config };
  } finally {
    await closeFiles(files);
  }
}

async function readWeights(
  openLoader: OpenLoader,
  settings: WireList,
  files: readonly LoadedFile[],
  { weights, signal, onProgress }: Reading,
): Promise<ModelEngine> {
  const tensors = files.flatMap((file) => file.entries.map((entry) => ({ file, entry })));
  const list = new WireList();
  for (const { entry, file } of tensors) {
    list.text(entry.name, file.name);
    list.text(storedName(entry.dtype), file.name);
    for (const number of [entry.shape.length, ...entry.shape]) list.number(number);
  }
  const loader = await openLoader({ settings: settings.flat(), tensors: list.flat(), weights });
  try {
    const needed = [...loader.needed].map((at) => ({ at, ...(tensors[at] as (typeof tensors)[number]) }));
    const total = needed.reduce((sum, { entry }) => sum + entry.end - entry.begin, 0);
    // Responses are read from their begin to their end.
    needed.sort((a, b) => files.indexOf(a.file) - files.indexOf(b.file) || a.entry.begin - b.entry.begin);
    let loaded = 0;
    onProgress?.(loaded, total);
    for (const { at, file, entry } of needed) {
      for (let begin = entry.begin; begin < entry.end; begin += pieceBytes) {
        const count = Math.min(pieceBytes, entry.end - begin);
        if (signal?.aborted) throw abortedError(signal, 'openModel');
        const data = await file.file.bytes.read(file.first + begin, count);
        if (data.length < count) throw formatError(entry.name, `${count} bytes in ${file.name}`, `${data.length}, the end of the file`);
        await loader.give(at, data);
        loaded += count;
        onProgress?.(loaded, total);
      }
    }
    if (signal?.aborted) throw abortedError(signal, 'openModel');
    return await loader.finish();
  } finally {
    loader.dispose();
  }
}
