// Errors of the library about a model's files, in the words of a visitor.

import { MultiheadError } from 'multihead/models';
import { printable } from '../../../bindings/src/runtime/text.js';
import { messageOf } from '../base/format.js';
import { formatBytes, shownName } from './limits.js';
import type { GivenFiles } from './messages.js';

type Say = (name: string, ...found: (string | undefined)[]) => string;

const mebibytes = (count: string): string => formatBytes(Number(count) * 2 ** 20);

/** Shapes are (2, 3) in messages of the library. */
const times = (text: string): string => text.replaceAll(/(\d), (?=\d)/g, '$1 × ');

/** The first of a list, and how many there are besides. */
function firstOf(list: string): string {
  const all = list.split(/, (?=[\w.]+(?:,|$))/);
  return all.length > 1 ? `${all[0]} and others` : list;
}

/**
 * Patterns of the library's messages, each with the page's sentence. `name` is the model's name. A model without a
 * folder has the name of its first file of weights.
 */
const known: readonly (readonly [RegExp, Say])[] = [
  [/: expected a file that can be read, got (.*)$/, (name, got) => `The browser could not read the files of ${name}: ${got}`],
  [/was aborted$/, (name) => `Stopped: ${name} was not opened.`],
  [/^config\.json: model_type: .*, got (.*)$/, (name, got) =>
    got === 'nothing' ? `config.json of ${name} names no family of models.` : `${name} is of the family ${got}, which this page does not know.`],
  [/^config\.json: ([\w.]+): expected (.*), got (.*)$/, (name, setting, expected, got) =>
    `${name} has a setting that this page does not know: ${setting} is ${got}, expected ${expected}.`],
  [/^config\.json: expected /, (name) => `config.json of ${name} is not a configuration in JSON.`],
  [/^([\w.-]+\.json): expected JSON/, (name, file) => `${file} of ${name} is not valid JSON.`],
  [/^tokenizer\.json: expected a tokenizer/, (name) => `tokenizer.json of ${name} is of a kind that this page cannot read.`],
  [/^(.*\.safetensors): expected a file of this name/, (_, file) => `${file} is missing. Choose all files of the model together.`],
  [/^([\w.-]+\.json): expected /, (name, file) => `${file} of ${name} has not the contents that belong there.`],
  [/^weights: expected the tensors of (.*), got none of the names (.*)$/, (name, family, list) =>
    `${name} does not fit its config.json: it lacks ${firstOf(list!)}, which a ${family} has.`],
  [/^weights: expected the shapes that config\.json says, got ([^:]+): expected (\([^)]*\)).*?, got (\([^)]*\)| \[\])/, (name, tensor, expected, got) =>
    `${name} does not fit its config.json: ${tensor} is ${times(got!)}, expected ${times(expected!)}.`],
  [/^(?:(.*\.safetensors): )?.*(?:: expected data_offsets within |, the end of the file$|: expected all of their bytes)/, (name, file) =>
    `${file ?? name} ends too early. Perhaps the download was cut off.`],
  [/^([\w.]+): expected finite numbers, got /, (name, tensor) => `${name} is damaged: ${tensor} has values that are no numbers.`],
  // A long name of a file is cut in front of "safetensors header".
  [/^(?:(.*\.safetensors): )?safetensors(?: header)?: |: expected at (?:least 8|most \d+) bytes, got \d+/, (name, file) =>
    `${file ?? name} is not a safetensors file.`],
  [/^weights: the model needs (\d+) MiB for the weights, and WebAssembly has at most (\d+) MiB(?:; weights: '(\w+)' would fit)?/, (name, needed, most, smaller) =>
    `${name} needs ${mebibytes(needed!)} of memory, and a page has at most ${mebibytes(most!)}. ${smaller ? `As ${smaller} it would fit.` : 'No smaller type of weights would fit either.'}`],
  [/^prompt: expected .*, got (\d+) tokens$/, (_, count) => `This text has ${count} tokens, more than the model takes.`],
];

/** Says why a model cannot be used. Keeps a message that the page does not know. */
export function problemOf(files: GivenFiles, error: unknown): string {
  if (!(error instanceof MultiheadError)) return messageOf(error);
  const weights = files.files.filter(({ path }) => path.endsWith('.safetensors'));
  const name = weights.length === 1 ? printable(weights[0]!.path) : shownName(files);
  if (error.code === 'E_LOAD' && error.argument === 'wasm') {
    return 'The part of this page that runs models could not be loaded. Is there a network?';
  }
  for (const [pattern, say] of known) {
    const found = pattern.exec(error.message);
    if (found) return say(name, ...found.slice(1));
  }
  if (error.code === 'E_MEMORY') return `This browser gives the page too little memory for ${name}.`;
  const message = error.message.startsWith(`${name}: `) ? error.message.slice(name.length + 2) : error.message;
  return `${name} cannot be used: ${message}`;
}
