// openSafetensors(): reads the header of a Blob or Response, and then one tensor at a time. The memory never holds more
// than one tensor of the file, unless the caller keeps them.

import { checkSignal } from '../runtime/abort.js';
import { optionError } from '../runtime/errors.js';
import { plain, readOptions } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import type { OpenSafetensors, OpenSafetensorsOptions, SafetensorsEntry, SafetensorsReader, SafetensorsTensor } from '../types/safetensors.js';
import { emptyRecord, formatError } from './format.js';
import { type Entry, inFileOrder, tensorOf } from './read.js';
import { openHeader, refused, sourceOf } from './source.js';

/** See {@link OpenSafetensors}. */
export const openSafetensors: OpenSafetensors = (source, options) => open(source, options);

async function open(source: unknown, given: OpenSafetensorsOptions = {}): Promise<SafetensorsReader> {
  const { signal } = readOptions(given, { signal: plain }, 'openSafetensors');
  checkSignal(signal);
  const { stream, bytes } = sourceOf(source, signal);

  const { entries, metadata, first } = await openHeader(bytes).catch(async (error: unknown) => {
    await stream?.cancel();
    throw error;
  });
  const inOrder = inFileOrder(entries);

  const read = async (entry: Entry): Promise<SafetensorsTensor> => {
    const wanted = entry.end - entry.begin;
    const data = await bytes.read(first + entry.begin, wanted);
    if (data.length < wanted) throw formatError(entry.name, `${wanted} bytes`, `${data.length}, the end of the file`);
    return tensorOf(entry, data);
  };
  const byName = new Map(entries.map((entry) => [entry.name, entry]));
  let begun = false;
  async function* iterate(): AsyncGenerator<[name: string, tensor: SafetensorsTensor], void, undefined> {
    if (begun && stream !== undefined) throw refused('a response that was not read, which is possible once', 'one that was');
    begun = true;
    try {
      for (const entry of inOrder) yield [entry.name, await read(entry)];
      const end = inOrder.at(-1)?.end ?? 0;
      const rest = await bytes.read(first + end, 1);
      if (rest.length > 0) throw formatError('safetensors data', `${end} bytes`, 'more');
    } finally {
      await stream?.cancel();
    }
  }
  const described = emptyRecord<SafetensorsEntry>();
  for (const { name, dtype, shape } of entries) described[name] = Object.freeze({ dtype, shape: Object.freeze([...shape]) });
  return Object.freeze({
    entries: Object.freeze(described),
    metadata,
    async read(name: string) {
      const entry = byName.get(name);
      if (stream !== undefined) throw refused('a Blob, whose tensors can be read in any order', 'a Response');
      if (entry !== undefined) return read(entry);
      throw optionError('name', 'the name of a tensor of the file', describe(name));
    },
    async close() {
      begun = true;
      await stream?.cancel();
    },
    [Symbol.asyncIterator]: iterate,
  });
}
