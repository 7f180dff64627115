// openModel(): loads the WebAssembly of multihead/models, and opens a folder with it.

import createGlue from 'built:models-glue';
import { createRuntime } from '../api/operations.js';
import { moduleTables } from '../generated/module_tables.js';
import { weightTypes } from '../generated/tables.js';
import { createLoader } from '../load/loader.js';
import type { WasmFiles } from '../load/source.js';
import { checkSignal } from '../runtime/abort.js';
import { MultiheadError } from '../runtime/errors.js';
import type { GuardedModule } from '../runtime/guard.js';
import type { Runtime } from '../runtime/operands.js';
import { checkChoice, type Names, namesOf, plain, readFlat } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import { isObject } from '../safetensors/format.js';
import type { ModelSource, OpenModel, OpenModelOptions } from '../types/models.js';
import { parseObject } from './config.js';
import { type Folder, folderOf } from './folder.js';
import { WasmModel } from './model.js';
import { tokenizerFinder } from './tokenizer.js';
import { readModel } from './weights.js';

const openNames = {
  ...{ weights: plain, onProgress: plain, signal: plain, tokenizer: plain },
  ...{ wasm: plain, simd: plain, integrity: plain },
} satisfies Names<OpenModelOptions>;

/** One instance of the core. */
interface Core {
  readonly runtime: Runtime;
}

/** Ids of a field that is a number or an array of numbers. */
const idsOf = (value: unknown): number[] => [value].flat().filter((id): id is number => Number.isInteger(id));

/** Labels of the classes in their order. */
function labelsOf(config: Record<string, unknown>, count: number): string[] {
  const labels = config['id2label'];
  if (count === 0) return [];
  return Array.from({ length: count }, (_, at) => {
    const label = isObject(labels) ? labels[String(at)] : undefined;
    return typeof label === 'string' ? label : `LABEL_${at}`;
  });
}

async function optionalObject(folder: Folder, name: string): Promise<Record<string, unknown>> {
  const text = await folder.text(name);
  return text === undefined ? {} : parseObject(name, text);
}

/** Makes the openModel() of an entry point. */
export function createOpenModel(findFiles: () => WasmFiles | Promise<WasmFiles>): OpenModel {
  const load = createLoader<Core>(findFiles, {
    part: 'models',
    createGlue,
    createApi: (raw: GuardedModule) => ({ runtime: createRuntime(raw, moduleTables) }),
  });
  return async function openModel(source: ModelSource, given: OpenModelOptions = {}) {
    const { weights, onProgress, signal, tokenizer, ...loading } = readFlat(given, openNames, 'openModel');
    if (weights !== undefined) checkChoice(weights, namesOf(weightTypes), 'weights');
    if (onProgress !== undefined && typeof onProgress !== 'function') {
      throw new MultiheadError('E_OPTION', { argument: 'onProgress', expected: 'a function', got: describe(onProgress) });
    }
    checkSignal(signal);
    const folder = folderOf(source, signal);
    const { runtime } = await load({ ...loading, signal });
    const [json, tokenizerConfig] = await Promise.all(['tokenizer.json', 'tokenizer_config.json'].map((name) => folder.text(name)));
    const findTokenizer = tokenizerFinder(tokenizer, { json, config: tokenizerConfig });
    const generation = await optionalObject(folder, 'generation_config.json');
    const pooling = await optionalObject(folder, '1_Pooling/config.json');
    const { handle, config } = await readModel(runtime, folder, { weights, signal, onProgress });
    return new WasmModel(runtime, handle, {
      findTokenizer,
      endIds: idsOf(generation['eos_token_id']),
      labelsOf: (count) => labelsOf(config, count),
      pooling: pooling['pooling_mode_cls_token'] === true ? 'firstToken' : 'mean',
    });
  };
}
