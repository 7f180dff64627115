// saveModel(): the folder of a model as files.

import { optionError } from '../runtime/errors.js';
import { roundToHalf } from '../runtime/half.js';
import { checkChoice, type Names, plain, readOptions } from '../runtime/options.js';
import { bytesPerElement } from '../runtime/memory.js';
import { elements } from '../runtime/shape.js';
import { headerOf } from '../safetensors/write.js';
import type { Model, ModelFile, SaveModelOptions } from '../types/models.js';
import { parseObject } from './config.js';
import { onThisThread } from './core/model.js';
import { insideOf } from './model.js';

/** As config.json says them. */
const typeNames = { f32: 'float32', f16: 'float16', bf16: 'bfloat16', asInMemory: undefined } as const;

const saveNames = { dtype: plain } satisfies Names<SaveModelOptions>;

/**
 * Saves a model: the files of a folder that {@link OpenModel} and transformers open. The tensors have the names and shapes of the
 * files that the model was opened from, in one `model.safetensors`; one more is beside each Dense module of a sentence-transformer.
 * `config.json` says the new type, without groups. The other texts are those that openModel() has read: `tokenizer.json` is among them unless a
 * `tokenizer` was given. Weights of `int8` and `int4` become the numbers that they stand for, except with `dtype: 'asInMemory'`: then
 * their rows are tensors of I8, which openModel() and the C++ library use as they are, and other libraries do not know.
 *
 * In Node: `for (const file of saveModel(model)) await writeFile(join(folder, file.name), file.stream())`.
 *
 * @returns the files, which openModel() takes as they are. A name may have folders in front.
 * @throws {MultiheadError} `E_OPTION` for something else than a model, a model in workers, of a GGUF file or of two towers, or a wrong
 *   option; `E_DISPOSED`,
 *   `E_MEMORY`
 */
export function saveModel(model: Model, given: SaveModelOptions = {}): ModelFile[] {
  const { dtype = 'f32' } = readOptions(given, saveNames, 'saveModel');
  checkChoice(dtype, Object.keys(typeNames) as (keyof typeof typeNames)[], 'dtype');
  const { engine, parts } = insideOf(model);
  const config = `${parts.base}config.json`;
  if (!parts.texts.has(config)) throw optionError('model', 'one of a folder with config.json', 'one of a GGUF file');
  const { hasImages, takesPixels, modelType } = engine.info;
  if (hasImages || (takesPixels && ['clip', 'siglip'].includes(modelType))) throw optionError('model', 'one of one tower', `${modelType}, with two`);
  const core = onThisThread(engine);
  const tensors = core.tensors(dtype === 'asInMemory').map((stored, index) => {
    const { name, shape } = stored;
    const folder = parts.dense.find((path) => name.startsWith(path));
    const type = dtype === 'asInMemory' ? stored.dtype : dtype;
    const kind = type === 'int8' ? { dtype: 'i8' as const, size: 1 } : { dtype: type, size: bytesPerElement(type) };
    const file = `${folder ?? parts.base}model.safetensors`;
    return { name: name.slice(folder?.length ?? 0), file, index, stored, ...kind, shape, bytes: kind.size * elements(shape) };
  });
  const weights = [...new Set(tensors.map(({ file }) => file))].map((file) => {
    // Larger elements first, so that all are aligned.
    const own = tensors.filter((tensor) => tensor.file === file).sort((a, b) => b.size - a.size);
    // A Blob keeps its own copy of each tensor, so the numbers are never there as a whole, too.
    const data = own.map(({ index, stored, dtype, shape }) => {
      if (dtype === 'i8') return new Blob([core.rows(stored)]);
      const numbers = core.tensor(index, shape);
      return new Blob([dtype === 'f32' ? numbers : (roundToHalf(numbers, dtype) as Uint16Array<ArrayBuffer>)]);
    });
    return new File([headerOf(own, { format: 'pt' }), ...data], file);
  });
  const texts = [...parts.texts].filter(([name]) => !name.endsWith('.safetensors.index.json'));
  return [...texts.map(([name, text]) => new File([name === config ? typed(text, typeNames[dtype]) : text], name)), ...weights];
}

/** config.json with another type of the weights. Settings of integers with groups go, since the weights are plain numbers now; the others stay. */
function typed(given: string, type: string | undefined): string {
  const { quantization, quantization_config: groups, ...rest } = parseObject('config.json', given);
  const text = (quantization ?? groups ?? null) === null ? given : JSON.stringify(rest, undefined, 2);
  if (type === undefined) return text;
  const types = /"(torch_dtype|dtype)"(\s*:\s*)(?:"[^"\\]*"|null)/g;
  if (!types.test(text)) return text.replace('{', `{\n  "torch_dtype": "${type}",`);
  return text.replace(types, (_, name: string, colon: string) => `"${name}"${colon}"${type}"`);
}
