// Errors about a model, in the words of a visitor. What is wrong with a file is said by the package.

import { printable } from '../base/format.js';
import type { Failure } from '../workers/protocol.js';
import { isWeights } from './folder_files.js';
import { shownName } from './limits.js';
import type { GivenFiles } from './messages.js';

/** Says why a model cannot be used. An error without a code is a sentence of this page. */
export function problemOf({ name: folder, files }: GivenFiles, { code, argument = '', got = '', message }: Failure): string {
  if (code === undefined) return message;
  const weights = files.filter(isWeights);
  // A model without a folder has the name of its file of weights.
  const name = weights.length === 1 ? printable(weights[0]!.path) : shownName({ name: folder });
  const said = message.startsWith(`${name}: `) ? message.slice(name.length + 2) : message;
  if (code === 'E_ABORTED') return `Stopped: ${name} was not opened.`;
  if (code === 'E_LOAD') return `The browser could not read the files of ${name}: ${got}`;
  if (code === 'E_MEMORY') return `${name} needs more memory than this page gets: ${said}`;
  if (argument === 'prompt') return `This text has ${got}, more than the model takes.`;
  if (argument.endsWith('.safetensors') && !files.some(({ path }) => path === argument)) {
    return `${argument} is missing. Choose all files of the model together.`;
  }
  return `${name} cannot be used: ${said}`;
}
