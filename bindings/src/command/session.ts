// Opens the folder, and reads the texts or ids, for all commands.

import type { FetchProgress, Model, ModelInfo, ModelInput, OpenModel, OpenModelOptions, SessionEdit } from '../types/models.js';
import type { OpenSparseAutoencoder } from '../types/sparse_autoencoder.js';
import { quoted, printable } from '../runtime/text.js';
import type { saveModel } from '../models/save.js';
import { choice, count, flag, lists, number, type Option, text, UsageError, type Values } from './arguments.js';
import type { Interrupt } from './interrupt.js';
import type { Input, Output, Stream } from './output.js';

/** Options of every command. */
export const sharedOptions = {
  ids: lists('token ids in place of a text, such as 1,15,7; needs no tokenizer'),
  weights: choice('type of the weights in memory', ['stored', 'f32', 'f16', 'bf16', 'int8', 'int4'], 'stored'),
  workers: text(
    'N',
    'divides passes among N workers, at most as many as there are idle cores, or among all cores; default none',
    'a whole number from 1 to 64, or all',
    (value) => value === 'all' || (/^[1-9]\d?$/.test(value) && Number(value) <= 64),
  ),
  revision: text('NAME', 'a branch, tag or commit of a name of the hub; default main', 'a name', (value) => value !== ''),
  local: flag('fetches nothing: a name of the hub is opened from the files that are kept'),
  json: flag('prints one JSON document instead of text'),
  help: flag('prints this'),
} satisfies Record<string, Option<unknown>>;

type Shared = Values<typeof sharedOptions>;

/** Options of commands that add a direction. */
export const steeringOptions = {
  sae: text('FOLDER', 'adds a direction of a sparse autoencoder in the form of SAELens', 'a folder', (value) => value !== ''),
  feature: count('the feature of that direction, from 0'),
  strength: number('times the direction; default 1', 'a number', () => true),
} satisfies Record<string, Option<unknown>>;

/** The edits of the direction, if there is one. Throws UsageError, OpenError. */
export async function steering(
  session: Session,
  { sae, feature, strength = 1, local }: Values<typeof steeringOptions> & { local?: boolean | undefined },
  { info }: Model,
): Promise<{ edits?: SessionEdit[] }> {
  if (sae === undefined && feature === undefined) return {};
  if (sae === undefined) throw new UsageError('--sae', 'a folder beside --feature', 'none');
  if (feature === undefined) throw new UsageError('--feature', 'a feature of --sae', 'none');
  if (local && /^https?:/i.test(sae)) throw new UsageError('--sae', 'a folder, or a name of the hub, beside --local', sae);
  const autoencoder = await session.openSparseAutoencoder(sae, { local, signal: session.interrupt.signal }).catch((cause: Error) => {
    throw new OpenError(sae, cause);
  });
  return { edits: [autoencoder.edit(feature, strength, info.numHeads)] };
}

/** The file of the benchmarks, entry/benchmarks.ts. */
export type Bench = typeof import('../../bench/report.mjs') & { readonly load: () => Promise<object> };

/** The surroundings of a command. */
export interface Session {
  readonly openModel: OpenModel;
  readonly saveModel: typeof saveModel;
  readonly openSparseAutoencoder: OpenSparseAutoencoder;
  /** Loads what only multihead bench needs. */
  readonly loadBench: () => Promise<Bench>;
  /** The version of the package. */
  readonly version: string;
  readonly output: Output;
  readonly messages: Stream;
  /** Standard input. */
  readonly input: Input;
  readonly interrupt: Interrupt;
}

/** Failures while a folder is opened. The message begins with the folder. */
export class OpenError extends Error {
  constructor(folder: string, cause: Error) {
    super(`${printable(folder, 400)}: ${cause.message}`, { cause });
  }
}

export interface Opened {
  readonly model: Model;
  /** Bytes of the weights that were read. */
  readonly readBytes: number;
  /** Fields about the model in the document of --json. */
  readonly description: Readonly<Record<string, string | number>>;
}

/** Loading shows its progress on a terminal if the weights have this many bytes. */
const large = 2 ** 27;

/** Opens the folder. Throws OpenError. */
export async function openNamed(
  session: Session,
  folder: string,
  { weights, embeddingWeights, workers, revision, local }: Omit<Shared, 'ids' | 'json' | 'help'> & Pick<OpenModelOptions, 'embeddingWeights'>,
): Promise<Opened> {
  const { interrupt, messages } = session;
  let shown = -1;
  let readBytes = 0;
  const onProgress = (loaded: number, total: number): void => {
    readBytes = total;
    const percent = Math.floor((100 * loaded) / total);
    if (!messages.isTTY || total < large || percent === shown) return;
    messages.write(`\rloading ${percent} %${loaded === total ? '\n' : ''}`, () => {});
    shown = percent;
  };
  const onFetch = ({ file, loaded, total = loaded }: FetchProgress): void => {
    if (messages.isTTY)
      messages.write(
        `\rfetching ${printable(file, 60)} ${Math.floor(loaded / 2 ** 20)} of ${Math.ceil(total / 2 ** 20)} MiB${loaded === total ? '\n' : ''}`,
        () => {},
      );
  };
  const begin = performance.now();
  const options: OpenModelOptions = {
    ...{ onProgress, onFetch, revision, local, embeddingWeights, signal: interrupt.signal },
    weights: weights === 'stored' ? undefined : weights,
    workers: workers === undefined || workers === 'all' ? workers : Number(workers),
  };
  const model = await interrupt
    .during(() => session.openModel(folder, options))
    .catch((cause: unknown) => {
      throw cause instanceof Error && !interrupt.signal.aborted ? new OpenError(folder, cause) : cause;
    });
  const { info } = model;
  return {
    model,
    readBytes,
    description: {
      ...{ model_type: info.modelType, layers: info.numLayers, width: info.embedDim, heads: info.numHeads },
      ...{ vocabulary: info.vocabSize, parameters: info.parameters, weights, weight_bytes: info.weightBytes },
      workers: model.workers,
      load_seconds: (performance.now() - begin) / 1000,
    },
  };
}

/** The model, or its encoder, for what reads a text. */
export const readerOf = (opened: Opened): Opened => ({ ...opened, model: opened.model.encoder ?? opened.model });

/** A causal language model is needed. */
export const refuseOthers = ({ output, causal }: ModelInfo): string | undefined =>
  output !== 'languageModel' || !causal ? 'a causal language model' : undefined;

/**
 * Opens the folder for `work`, and frees it. Throws OpenError; UsageError if the model takes pixels, or `refuse` describes
 * another model that the command needs.
 */
export async function withModel(
  session: Session,
  folder: string,
  values: Shared,
  work: (opened: Opened) => Promise<void>,
  refuse?: (info: ModelInfo) => string | undefined,
): Promise<void> {
  const opened = await openNamed(session, folder, values);
  const { model } = opened;
  try {
    const expected = model.info.takesPixels ? 'a model of token ids' : refuse?.(model.info);
    if (expected !== undefined) throw new UsageError(printable(folder, 400), expected, model.info.modelType);
    await work(opened);
  } finally {
    model.dispose();
  }
}

/** The folder, and the texts or ids: from `least` to `most` of them. Throws UsageError. */
export function readInputs(
  positionals: readonly string[],
  { ids }: Pick<Shared, 'ids'>,
  most: number,
  least = 1,
): { folder: string; inputs: readonly ModelInput[] } {
  const [folder, ...given] = positionals;
  if (folder === undefined || folder === '')
    throw new UsageError(
      'FOLDER',
      'a folder with config.json and safetensors files, a GGUF file, or a name of the hub',
      folder === '' ? '""' : 'none',
    );
  if (ids.length > 0 && given.length > 0) throw new UsageError('--ids', 'no text beside it', quoted(String(given[0])));
  const inputs: readonly ModelInput[] = ids.length > 0 ? ids : given;
  const wanted =
    most === 1
      ? 'one text, in quotes, or --ids'
      : `${least === 2 ? 'two texts' : most === 2 ? 'one text or two' : 'one text or more'}, each in quotes, or --ids`;
  if (inputs.length < least || inputs.length > most) throw new UsageError('TEXT', wanted, inputs.length === 0 ? 'none' : `${inputs.length}`);
  return { folder, inputs };
}
