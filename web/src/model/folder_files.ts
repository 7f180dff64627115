// The files of a model among those that a visitor chose or dropped.

import type { GivenFile, GivenFiles } from './messages.js';

/** The files that a model may have; a folder of Hugging Face has others, which are not read. heads.json is this page's own. */
const used =
  /(^|\/)(((preprocessor_|generation_|tokenizer_)?config|tokenizer|heads)\.json|1_Pooling\/config\.json|[^/]+\.(safetensors(\.index\.json)?|gguf))$/;

/** A GGUF file is a whole model. */
export const isGguf = ({ path }: GivenFile): boolean => path.endsWith('.gguf');
export const isWeights = (file: GivenFile): boolean => file.path.endsWith('.safetensors') || isGguf(file);
const isConfig = ({ path }: GivenFile): boolean => path === 'config.json';

const folderOf = (path: string): string => path.slice(0, path.lastIndexOf('/') + 1);
const depthOf = (path: string): number => path.split('/').length;

/** The name of the folder, empty without one, and the files with their paths inside of it. */
interface Found {
  readonly folder: string;
  readonly files: readonly GivenFile[];
}

/**
 * Finds the files of one model: of the uppermost folder with config.json, and of its folder 1_Pooling; without config.json one
 * GGUF file. A folder may contain the same model in other formats.
 */
export function modelFiles(given: readonly GivenFile[]): Found {
  const known = given.filter(({ path }) => used.test(path));
  const configs = known.filter(({ path }) => /(^|\/)config\.json$/.test(path) && !/(^|\/)1_Pooling\/config\.json$/.test(path));
  const first = [...(configs.length > 0 ? configs : known)].sort((a, b) => depthOf(a.path) - depthOf(b.path))[0];
  const folder = first ? folderOf(first.path) : '';
  const files = known
    .filter(({ path }) => folderOf(path) === folder || path === `${folder}1_Pooling/config.json`)
    .map(({ path, file }) => ({ path: path.slice(folder.length), file }));
  const gguf = configs.length === 0 ? files.find(isGguf) : undefined;
  return { folder: folder.split('/').at(-2) ?? '', files: gguf ? [gguf] : files.filter((file) => !isGguf(file)) };
}

const named = (folder: string, files: readonly GivenFile[]): GivenFiles => {
  const weights = files.filter(isWeights);
  return { name: folder || weights[0]?.path || 'this model', files };
};

export interface Selection {
  /** The model's files as far as they are there. */
  readonly files: GivenFiles;
  /** The file that is still to be chosen; empty if none is. */
  readonly missing: string;
}

/**
 * The model that a choice makes together with the files before it: with an incomplete choice, or, if only a tokenizer was
 * chosen, with the model in use. Undefined if the choice has no file of a model.
 */
export function select(given: readonly GivenFile[], incomplete: GivenFiles | undefined, inUse: GivenFiles | undefined): Selection | undefined {
  const { folder, files } = modelFiles(given);
  if (files.length === 0) return undefined;
  const startsAnew = files.some((file) => isConfig(file) || isWeights(file));
  const isWhole = files.some(isGguf) || (files.some(isConfig) && files.some(isWeights));
  const before = isWhole ? undefined : (incomplete ?? (startsAnew ? undefined : inUse));
  const paths = new Set(files.map(({ path }) => path));
  const all = [...(before?.files ?? []).filter(({ path }) => !paths.has(path)), ...files];
  const missing = all.some(isGguf) ? '' : !all.some(isConfig) ? 'config.json' : all.some(isWeights) ? '' : 'its .safetensors file';
  // A tokenizer that is added does not change the name.
  const name = folder === '' && !startsAnew && before ? before.name : named(folder, all).name;
  return { files: { name, files: all }, missing };
}

export const weightBytes = ({ files }: GivenFiles): number => files.filter(isWeights).reduce((sum, { file }) => sum + file.size, 0);

export const allBytes = ({ files }: GivenFiles): number => files.reduce((sum, { file }) => sum + file.size, 0);
