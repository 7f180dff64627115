// openModel(): loads the WebAssembly of multihead/models, here or in workers, and opens a folder with it.

import { mostJsonBytes } from '../generated/folder_files.js';
import { type PartName, partNames } from '../generated/parts.js';
import { weightTypes } from '../generated/tables.js';
import { createLoader, moduleOf, type Parts } from '../load/loader.js';
import { type FindPart, isSource, notASource, sourceKinds, type WasmFiles } from '../load/source.js';
import { optionError } from '../runtime/errors.js';
import { checkCallback, checkChoice, type Names, namesOf, plain, readOptions } from '../runtime/options.js';
import type { Runtime } from '../runtime/operands.js';
import type { RawModule } from '../runtime/raw.js';
import { describe } from '../runtime/tensor.js';
import { isObject } from '../safetensors/format.js';
import type { Simd } from '../types/load.js';
import type { ChatMessage, ModelSource, OpenModel, OpenModelOptions } from '../types/models.js';
import { renderChat } from './chat.js';
import { parseObject } from './config.js';
import { type Core, modelContents } from './core/contents.js';
import type { LoaderInput, OpenLoader } from './core/engine.js';
import { CoreLoader } from './core/loader.js';
import { readText } from './folder.js';
import { findFolder } from './find_folder.js';
import type { Place } from './gpu/loader.js';
import { OpenedModel } from './model.js';
import type { ModelParts } from './parts.js';
import { type FolderSettings, readSettings } from './settings.js';
import { tokenizerFinder } from './tokenizer.js';
import { judge, readModel } from './weights.js';
import type { WorkersPlatform } from './workers/model_workers.js';
import type { CompiledModule } from './workers/worker_group.js';

const openNames = {
  ...{ weights: plain, embeddingWeights: plain, onProgress: plain, signal: plain, tokenizer: plain, workers: plain, worker: plain },
  device: plain,
  ...{ revision: plain, host: plain, local: plain, onFetch: plain },
  ...{ wasm: plain, simd: plain, integrity: plain, parts: plain },
} satisfies Names<OpenModelOptions>;

/** Larger than any tokenizer.json; those of 256,000 tokens have 33 MB. */
const mostTokenizerBytes = 2 ** 28;

const textOf = (file: unknown): string | undefined => (typeof file === 'string' ? file : undefined);

/** Labels of the classes in their order. */
function labelsOf(config: Record<string, unknown>, count: number): string[] {
  const labels = config['id2label'];
  if (count === 0) return [];
  return Array.from({ length: count }, (_, at) => {
    const label = isObject(labels) ? labels[String(at)] : undefined;
    return typeof label === 'string' ? label : `LABEL_${at}`;
  });
}

/** What texts are padded with, by tokenizer_config.json and config.json. */
function paddingOf({ tokenizerConfig, config }: FolderSettings): ModelParts['padding'] {
  const given = tokenizerConfig === undefined ? undefined : parseObject('tokenizer_config.json', tokenizerConfig)['pad_token'];
  const token = isObject(given) ? given['content'] : given;
  const inner = isObject(config['text_config']) ? config['text_config'] : config;
  const id = inner['pad_token_id'];
  return { token: typeof token === 'string' ? token : undefined, id: typeof id === 'number' ? id : 1 };
}

/** Finds the parts that the caller gave. Throws `E_OPTION`. */
function readParts(given: OpenModelOptions['parts']): FindPart | undefined {
  if (given === undefined) return undefined;
  const known = Object.fromEntries(partNames.map((part) => [part, plain])) as Names<typeof given>;
  const parts = readOptions(given, known, 'parts');
  for (const part of partNames) {
    const source = parts[part];
    if (source !== undefined && !isSource(source)) throw notASource(source, `parts.${part}`, sourceKinds);
  }
  return (part) => parts[part];
}

type LoadPart = (part: PartName) => Promise<void>;

const loaderOf =
  (runtime: Runtime): LoadPart =>
  async (part) =>
    runtime.loadPart?.(part);

/** The parts that the files and the types of the weights need. */
function partsOf({ settings, tensors, weights, embeddingWeights }: LoaderInput): PartName[] {
  const types = [weights, embeddingWeights];
  const has = (pattern: RegExp): boolean => pattern.test(tensors.texts);
  const needed: [PartName, boolean][] = [
    ['formats', settings.texts.includes('general.architecture\0') || has(/\.scales\0|\0I8\0/)],
    ['quantized', types.includes('int8') || types.includes('int4')],
    ['inspection', has(/relative_attention_bias|rel_embeddings/)],
  ];
  return needed.flatMap(([part, isNeeded]) => (isNeeded ? [part] : []));
}

const withParts =
  (load: LoadPart, open: OpenLoader): OpenLoader =>
  async (input) => {
    await Promise.all(partsOf(input).map(load));
    return open(input);
  };

/** Makes the openModel() of an entry point. */
export function createOpenModel(findFiles: () => WasmFiles | Promise<WasmFiles>, platform: WorkersPlatform): OpenModel {
  const load = createLoader<Core>(findFiles, modelContents);
  /** Compiles the WebAssembly for workers, and makes no instance of it here. */
  const compile = createLoader<{ readonly simd: Simd; readonly parts: Parts }>(findFiles, {
    part: 'models',
    createGlue: async () => ({}) as RawModule,
    createApi: (_, { simd }, parts) => ({ simd, parts }),
  });

  /** On a GPU; what `openCpu` gives takes a model or a device that gives a reason. */
  async function onGpu(loading: Loading, findPart: FindPart | undefined, openCpu?: () => Promise<Place>): Promise<Place> {
    const [{ runtime }, { openGpuLoader }] = await Promise.all([load(loading, findPart), import('./gpu/loader.js')]);
    const { openLoader, abandon } = await openGpuLoader(runtime, await openCpu?.(), loading.signal);
    return { openLoader: withParts(loaderOf(runtime), openLoader), abandon };
  }

  type Loading = Pick<OpenModelOptions, 'wasm' | 'simd' | 'integrity' | 'signal'>;

  async function here(loading: Loading, findPart: FindPart | undefined): Promise<Place> {
    const { runtime } = await load(loading, findPart);
    return { openLoader: withParts(loaderOf(runtime), (input) => new CoreLoader(runtime, input)), abandon: () => {} };
  }

  async function inWorkers(workers: unknown, worker: unknown, loading: Loading, findPart: FindPart | undefined): Promise<Place> {
    const { signal } = loading;
    const { openLoaderIn, startWorkers } = await import('./workers/model_workers.js');
    let compiled: CompiledModule | undefined;
    const group = await startWorkers(platform, { workers, worker, signal }, async () => {
      const made = await compile(loading, findPart);
      return (compiled = { module: moduleOf.get(made) as WebAssembly.Module, simd: made.simd, compilePart: made.parts.compile });
    });
    if (group !== undefined) {
      const abandon = (): void => group.dispose();
      try {
        await group.load('team');
      } catch (error) {
        abandon();
        throw error;
      }
      return { openLoader: withParts(group.load, (input) => openLoaderIn(group, input)), abandon };
    }
    return here({ wasm: compiled?.module, simd: compiled?.simd, signal }, findPart);
  }

  return async function openModel(source: ModelSource, given: OpenModelOptions = {}) {
    const { weights, embeddingWeights, onProgress, tokenizer, workers, worker, ...rest } = readOptions(given, openNames, 'openModel');
    const { revision, host, local, onFetch, device: where = 'cpu', parts: ownParts, ...loading } = rest;
    const device = checkChoice(where, ['cpu', 'gpu', 'auto'], 'device');
    const { signal } = loading;
    if (weights !== undefined) checkChoice(weights, namesOf(weightTypes), 'weights');
    if (embeddingWeights !== undefined) checkChoice(embeddingWeights, namesOf(weightTypes), 'embeddingWeights');
    checkCallback(onProgress, 'onProgress');
    if (worker !== undefined && workers === undefined) throw optionError('worker', 'none without workers', describe(worker));
    if (device === 'gpu' && workers !== undefined) throw optionError('workers', "none with device 'gpu'", describe(workers));
    const findPart = readParts(ownParts);
    const folder = await findFolder(source, { revision, host, local, signal, onFetch });
    const reading = readSettings(folder, signal);
    reading.catch(() => {}); // it is thrown below
    const places: Place[] = [];
    const newPlace = async (): Promise<OpenLoader> => {
      const onCpu = () => (workers === undefined ? here(loading, findPart) : inWorkers(workers, worker, loading, findPart));
      const place = await (device === 'cpu' ? onCpu() : onGpu(loading, findPart, device === 'auto' ? onCpu : undefined));
      places.push(place);
      return place.openLoader;
    };
    const openLoader = await newPlace();
    try {
      const found = await reading;
      const isRead = typeof source === 'object' && Symbol.iterator in source && [...source].some((file) => file instanceof Response);
      if (isRead && ['clip', 'siglip'].includes(String(found.config['model_type'])))
        throw optionError('source', 'another source than responses: each of the two towers reads the files', 'responses');
      await judge(openLoader, found);
      const reads = { weights, embeddingWeights, signal, onProgress };
      const [json, template, engine] = await Promise.all([
        tokenizer === undefined && !folder.gguf ? readText(folder, `${found.base}tokenizer.json`, signal, mostTokenizerBytes) : undefined,
        folder.gguf ? undefined : readText(folder, `${found.base}chat_template.jinja`, signal, mostJsonBytes, false),
        readModel(openLoader, folder, found, { ...reads, images: false }),
      ]);
      const { hasImages, output, causal } = engine.info;
      const generates = output === 'languageModel' && causal;
      const generator = generates ? await import('./generator.js') : undefined;
      const openImages = async () => readModel(workers === undefined ? openLoader : await newPlace(), folder, found, { ...reads, images: true });
      const images = hasImages && (await openImages());
      const { gguf, tokenizerConfig } = found;
      const readConfig = () => (tokenizerConfig === undefined ? {} : parseObject('tokenizer_config.json', tokenizerConfig));
      const readTokenizer = () =>
        typeof json === 'string' ? { json: parseObject('tokenizer.json', json), config: readConfig() } : gguf?.tokenizer();
      const parts = {
        generator,
        preprocessor: found.preprocessor,
        padding: paddingOf(found),
        findTokenizer: tokenizerFinder(tokenizer, readTokenizer),
        renderChat: async (messages: readonly ChatMessage[]) =>
          renderChat({ template: textOf(template), config: gguf?.tokenizerConfig() ?? readConfig() }, messages),
        labelsOf: (count: number) => labelsOf(found.config, count),
        prompts: found.prompts,
        ...{ texts: folder.texts, base: found.base, dense: found.dense },
        lowerCase: found.settings.get('sentence_bert_config.json/do_lower_case') === true,
      };
      return new OpenedModel(engine, parts, images ? new OpenedModel(images, parts) : undefined);
    } catch (error) {
      for (const place of places) place.abandon();
      throw error;
    } finally {
      await reading.then(
        ({ gguf }) => gguf?.file.file?.close(),
        () => {},
      );
      folder.end?.();
    }
  };
}
