// Reads the weights of a folder for a loader: headers first, then each needed tensor in pieces.

import { abortedError } from '../runtime/abort.js';
import type { MultiheadError } from '../runtime/errors.js';
import { cutOff, formatError, inWords, lengthBytes, storedName } from '../safetensors/format.js';
import { openHeader } from '../safetensors/source.js';
import type { ModelWeights } from '../types/models.js';
import { flatten, parseObject, type Settings, WireList, wireOf } from './config.js';
import type { ModelEngine, OpenLoader } from './core/engine.js';
import { pieceBytes } from './core/loader.js';
import { type Absent, cleanPath, type Folder, isAbsent, missingFile, type OpenFile, page, readText } from './folder.js';
import type { FolderSettings } from './settings.js';
import { inFile, type StoredEntry, type WeightFile } from './weight_file.js';

/** Opens files of weights, and reads their headers. */
class WeightFiles {
  readonly files: WeightFile[] = [];
  readonly #folder: Folder;

  constructor(folder: Folder) {
    this.#folder = folder;
  }

  /** Adds a file unless it is absent. */
  async add(name: string, prefix = ''): Promise<Absent | undefined> {
    const file = await this.#folder.open(name);
    if (isAbsent(file)) return file;
    const at = this.files.push({ name, prefix, file, first: 0, entries: [] }) - 1;
    try {
      const begin = await file.bytes.read(0, lengthBytes);
      const { first, entries: tensors } = await openHeader(file.bytes, begin);
      const entries = tensors.map(({ dtype, ...entry }) => ({ ...entry, type: storedName(dtype) }));
      this.files[at] = { name, prefix, file, first, entries };
    } catch (error) {
      const named = inFile(name, error);
      if ((named as MultiheadError).got !== page) throw named;
      this.files.pop();
      await file.close();
      return { reason: named as MultiheadError };
    }
    return undefined;
  }

  /** Adds a file that must exist. Throws `E_FORMAT`, `E_LOAD`. */
  async require(name: string, prefix = ''): Promise<void> {
    const absent = await this.add(name, prefix);
    if (absent !== undefined) throw await missingFile(this.#folder, name, absent);
    // A connection that waits while others are read may end.
    if (this.#folder.connects) await this.closeFirst(this.files.length);
  }

  /** Opens a file again. */
  async reopen(file: WeightFile): Promise<OpenFile> {
    if (file.file !== undefined) return file.file;
    const again = await this.#folder.open(file.name);
    if (isAbsent(again)) throw await missingFile(this.#folder, file.name, again);
    return (file.file = again);
  }

  /** Closes the first `count` files. */
  async closeFirst(count = this.files.length): Promise<void> {
    for (const file of this.files.slice(0, count)) {
      await file.file?.close();
      file.file = undefined;
    }
  }
}

/** Reads the index. Throws `E_FORMAT`. */
async function readIndex(folder: Folder, base: string, signal: AbortSignal | undefined): Promise<Settings | undefined> {
  const name = 'model.safetensors.index.json';
  const text = await readText(folder, base + name, signal);
  if (typeof text !== 'string') return undefined;
  const all: Settings = new Map();
  flatten(name, parseObject(name, text), all, '', 'weight_map');
  const index: Settings = new Map();
  for (const [path, value] of all) {
    const file = typeof value === 'string' && value !== '' ? cleanPath(value) : undefined;
    if (file === undefined) throw formatError(`${name}: ${path}`, 'the name of a file in this folder', inWords(value));
    index.set(path.slice('weight_map.'.length), file);
  }
  if (index.size === 0) throw formatError(name, 'weight_map, an object of tensors and names of files', 'none');
  return index;
}

/** Opens the files of the transformer. Returns the index, if there is one. */
async function openTransformer(folder: Folder, base: string, files: WeightFiles, signal: AbortSignal | undefined): Promise<Settings> {
  const single = `${base}model.safetensors`;
  const absent = await files.add(single);
  if (absent === undefined) return new Map();
  const index = await readIndex(folder, base, signal);
  if (index === undefined) {
    const all = (await folder.list(base)).filter((name) => name.endsWith('.safetensors') && name !== 'adapter_model.safetensors');
    if (all.length !== 1 || absent.reason !== undefined) throw await missingFile(folder, single, absent);
    await files.require(base + (all[0] as string));
    return new Map();
  }
  const names = [...new Set(index.values())].sort() as string[];
  await folder.fetchAll?.(names.map((name) => base + name));
  for (const name of names) await files.require(base + name);
  return index;
}

export interface Reading {
  readonly weights: ModelWeights | undefined;
  readonly embeddingWeights: ModelWeights | undefined;
  readonly images: boolean;
  readonly signal: AbortSignal | undefined;
  readonly onProgress: ((loaded: number, total: number) => void) | undefined;
}

interface Tensor {
  readonly name: string;
  readonly file: WeightFile;
  readonly entry: StoredEntry;
}

/** The tensors of all files. One that several files have is that of the file that the index names, else of the first. */
function tensorsOf(files: readonly WeightFile[], base: string, index: Settings): Tensor[] {
  const tensors = new Map<string, Tensor>();
  for (const file of files) {
    for (const entry of file.entries) {
      const name = file.prefix + entry.name;
      if (!tensors.has(name) || base + index.get(name) === file.name) tensors.set(name, { name, file, entry });
    }
  }
  for (const [name, file] of index) {
    if (!tensors.has(name)) throw formatError(String(file), `the tensor ${name}`, 'a file without it');
  }
  return [...tensors.values()];
}

/** Throws for a configuration that the core does not support, before anything large is fetched. */
export async function judge(openLoader: OpenLoader, { settings, gguf }: FolderSettings): Promise<void> {
  if (gguf !== undefined) return; // its tensors are known, too
  const tensors = new WireList().flat();
  try {
    (await openLoader({ settings: wireOf(settings), tensors, weights: undefined, embeddingWeights: undefined, images: false })).dispose();
  } catch (error) {
    // Without tensors, all weights are missing.
    if ((error as MultiheadError).argument !== 'weights') throw error;
  }
}

/** Reads the weights of a folder. Returns what runs the model. */
export async function readModel(
  openLoader: OpenLoader,
  folder: Folder,
  { settings, base, dense, gguf }: FolderSettings,
  { weights, embeddingWeights, images, signal, onProgress }: Reading,
): Promise<ModelEngine> {
  const files = new WeightFiles(folder);
  try {
    if (gguf !== undefined) files.files.push(gguf.file);
    const index = gguf === undefined ? await openTransformer(folder, base, files, signal) : new Map<string, string>();
    for (const path of dense) await files.require(`${path}model.safetensors`, path);
    const tensors = tensorsOf(files.files, base, index);
    const list = new WireList();
    for (const { name, entry, file } of tensors) {
      list.text(name, file.name);
      list.text(entry.type, file.name);
      for (const number of [entry.shape.length, ...entry.shape]) list.number(number);
    }
    const loader = await openLoader({ settings: wireOf(settings), tensors: list.flat(), weights, embeddingWeights, images });
    try {
      const needed = [...loader.needed].map((at) => ({ at, ...(tensors[at] as Tensor) }));
      const total = needed.reduce((sum, { entry }) => sum + entry.end - entry.begin, 0);
      // Responses are read from their begin to their end.
      const order = new Map(files.files.map((file, at) => [file, at]));
      needed.sort((a, b) => (order.get(a.file) as number) - (order.get(b.file) as number) || a.entry.begin - b.entry.begin);
      let loaded = 0;
      onProgress?.(loaded, total);
      for (const { at, name, file, entry } of needed) {
        await files.closeFirst(order.get(file));
        const { bytes } = await files.reopen(file);
        for (let begin = entry.begin; begin < entry.end; begin += pieceBytes) {
          const count = Math.min(pieceBytes, entry.end - begin);
          if (signal?.aborted) throw abortedError(signal, 'openModel');
          const data = await bytes.read(file.first + begin, count);
          if (data.length < count) throw formatError(name, `${count} bytes in ${file.name}`, `${data.length}${cutOff}`);
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
  } finally {
    await files.closeFirst();
  }
}
