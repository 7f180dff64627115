// Reads the settings of a folder: config.json, and the files beside it, by the rules of folder_files.inc.

import { settingsFiles } from '../generated/folder_files.js';
import { formatError, inWords, isObject } from '../safetensors/format.js';
import { flatten, parseJson, parseObject, type Settings } from './config.js';
import { type Absent, cleanPath, type Folder, isAbsent, missingFile, readText } from './folder.js';
import type { TokenizerJson } from './tokenizer.js';
import { inFile, type WeightFile } from './weight_file.js';

export interface FolderSettings {
  /** For the core. */
  readonly settings: Settings;
  /** config.json. */
  readonly config: Record<string, unknown>;
  /** Where the files of the transformer are: empty, or a path with a slash at its end. */
  readonly base: string;
  /** Folders of the Dense modules, with a slash at the end. */
  readonly dense: readonly string[];
  readonly tokenizerConfig: string | undefined;
  /** preprocessor_config.json of a model with images. */
  readonly preprocessor: string | undefined;
  /** Of config_sentence_transformers.json: texts to put before others, by their names, and the name of the default. */
  readonly prompts: Settings;
  /** The GGUF file that is the model. What makes the tokenizer takes a second for 256,000 tokens. */
  readonly gguf?: { readonly file: WeightFile; readonly tokenizer: () => TokenizerJson; readonly tokenizerConfig: () => TokenizerJson['config'] };
}

const preprocessorFile = 'preprocessor_config.json';
const processorFile = 'processor_config.json';

const isText = (text: string | Absent): text is string => typeof text === 'string';

/** Opens a GGUF file. Throws `E_FORMAT`, `E_LOAD`. */
async function readGgufSettings(folder: Folder, name: string): Promise<FolderSettings> {
  const [file, { readGguf, tokenizerOf, tokenizerConfigOf }] = await Promise.all([folder.open(name), import('./gguf.js')]);
  if (isAbsent(file)) throw await missingFile(folder, name, file);
  try {
    const header = await readGguf(file.bytes);
    const { settings, entries, first, bytes } = header;
    const weights = { name, prefix: '', file: { ...file, bytes }, first, entries };
    const gguf = { file: weights, tokenizer: () => tokenizerOf(header), tokenizerConfig: () => tokenizerConfigOf(header) };
    return { settings, config: {}, base: '', dense: [], preprocessor: undefined, tokenizerConfig: undefined, prompts: new Map(), gguf };
  } catch (error) {
    await file.close();
    throw inFile(name, error);
  }
}

/** The settings of images; transformers 5 writes those of a model of texts and images among others. */
async function readPreprocessor(read: (name: string) => Promise<string | Absent>): Promise<string | undefined> {
  const [own, shared] = await Promise.all([preprocessorFile, processorFile].map(read));
  if (typeof own === 'string') return own;
  const member = typeof shared === 'string' ? parseObject(processorFile, shared)['image_processor'] : undefined;
  return isObject(member) ? JSON.stringify(member) : undefined;
}

/** Reads all settings; files side by side. Throws `E_FORMAT`, and `E_LOAD` for config.json. */
export async function readSettings(folder: Folder, signal: AbortSignal | undefined): Promise<FolderSettings> {
  if (folder.gguf !== undefined) return readGgufSettings(folder, folder.gguf);
  const settings: Settings = new Map();
  const read = (name: string): Promise<string | Absent> => readText(folder, name, signal);
  const filesIn = (base: string) => Promise.all(['config.json', ...settingsFiles.map(([name]) => name)].map((name) => read(base + name)));
  const pooling = '1_Pooling/config.json';
  const modules = 'modules.json';
  const file = 'config_sentence_transformers.json';
  const [list, sentences, pooled, atRoot] = await Promise.all([read(modules), read(file), read(pooling), filesIn('')]);

  if (isText(list)) {
    const json = parseJson(modules, list);
    if (!Array.isArray(json)) throw formatError(modules, 'a JSON array', inWords(json));
    flatten(modules, json, settings, `${modules}/`);
  }
  const paths: string[] = [];
  const dense: string[] = [];
  for (let at = 0; typeof settings.get(`${modules}/${at}.type`) === 'string'; at += 1) {
    const given = settings.get(`${modules}/${at}.path`) ?? '';
    const path = typeof given === 'string' ? cleanPath(given) : undefined;
    if (path === undefined) throw formatError(`${modules}: ${at}.path`, 'a folder below this one', inWords(given));
    if (/(^|\.)Dense$/.test(settings.get(`${modules}/${at}.type`) as string) && at > 0) dense.push(`${path}/`);
    paths.push(path);
  }
  const base = paths[0] ? `${paths[0]}/` : '';
  const [text, ...others] = base === '' ? atRoot : await filesIn(base);
  if (!isText(text as string | Absent)) throw await missingFile(folder, `${base}config.json`, text as Absent);
  const config = parseObject('config.json', text as string);
  flatten('config.json', config, settings);
  settingsFiles.forEach(([name, member], at) => {
    const found = others[at] as string | Absent;
    if (isText(found)) flatten(name, parseObject(name, found), settings, `${name}/`, member);
  });
  const preprocessor = 'image_size' in config || 'vision_config' in config ? await readPreprocessor((name) => read(base + name)) : undefined;
  if (preprocessor !== undefined)
    flatten(preprocessorFile, parseObject(preprocessorFile, preprocessor), settings, `${preprocessorFile}/`, 'crop_size');
  const names = paths.length === 0 ? [pooling] : paths.slice(1).flatMap((path) => (path === '' ? [] : [`${path}/config.json`]));
  const texts = await Promise.all(names.map((name) => (name === pooling ? pooled : read(name))));
  names.forEach((name, at) => {
    const found = texts[at] as string | Absent;
    if (isText(found)) flatten(name, parseObject(name, found), settings, `${name}/`);
  });
  const prompts: Settings = new Map();
  if (isText(sentences)) flatten(file, parseObject(file, sentences), prompts);
  const tokenizer = others[settingsFiles.findIndex(([name]) => name === 'tokenizer_config.json')] as string | Absent;
  return { settings, config, base, dense, preprocessor, tokenizerConfig: isText(tokenizer) ? tokenizer : undefined, prompts };
}
