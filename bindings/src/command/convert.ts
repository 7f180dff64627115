// multihead convert: a folder with smaller weights, which opens at once.

import { mkdir, mkdtemp, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { printable, quoted } from '../runtime/text.js';
import type { ModelFile } from '../types/models.js';
import { choice, type Option, parse, UsageError } from './arguments.js';
import { OutputError } from './output.js';
import { openNamed, type Session, sharedOptions } from './session.js';

const { revision, local, json, help } = sharedOptions;
const types = ['int8', 'int4', 'f16', 'bf16', 'f32'] as const;

export const convertOptions = {
  weights: choice('type of the matrices', types, 'int8'),
  embeddingWeights: choice('type of the embedding and of the matrix of logits', ['auto', ...types], 'auto'),
  ...{ revision, local, json, help },
} satisfies Record<string, Option<unknown>>;

export const convertHelp = `
auto is int8 beside int4, because int4 of these two loses more than int4 of all others, and else the type of --weights. The files of the
tokenizer and the settings stay as they are. int8 and int4 are rows of blocks that this package and the C++ library read; f16, bf16 and f32
are what transformers reads, too. OUT must not exist, or be an empty folder.
`;

/** Bytes in words. */
const sizeOf = (bytes: number): string => (bytes < 1e5 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

export async function convert(args: readonly string[], session: Session): Promise<void> {
  const { values, positionals } = parse(args, convertOptions);
  const [folder, out, more] = positionals;
  if (folder === undefined || folder === '') throw new UsageError('FOLDER', 'a folder with config.json and safetensors files', 'none');
  if (out === undefined || out === '') throw new UsageError('OUT', 'the name of a new folder', 'none');
  if (more !== undefined) throw new UsageError('OUT', 'one new folder', quoted(more));
  const there = await readdir(out).catch((error: { code?: string }) => (error.code === 'ENOENT' ? [] : [String(error.code)]));
  if (there.length > 0)
    throw new UsageError('OUT', 'the name of a new folder, or an empty one', `${printable(out, 400)} with ${printable(there[0] as string)}`);
  const { weights } = values;
  const embeddingWeights = values.embeddingWeights !== 'auto' ? values.embeddingWeights : weights === 'int4' ? 'int8' : weights;
  const { model, readBytes, description } = await openNamed(session, folder, { ...values, embeddingWeights, workers: undefined });
  try {
    const files = session.saveModel(model, { dtype: 'asInMemory' });
    await writeFolder(out, files);
    const written = files.map(({ name, size }) => ({ name, bytes: size }));
    if (values.json) {
      await session.output.json({ ...description, embedding_weights: embeddingWeights, read_bytes: readBytes, files: written });
      return;
    }
    for (const { name, bytes } of written) await session.output.write(`${sizeOf(bytes).padStart(10)}  ${printable(name)}\n`);
    const all = written.filter(({ name }) => name.endsWith('.safetensors')).reduce((sum, { bytes }) => sum + bytes, 0);
    await session.output.write(`${printable(out, 400)}: ${sizeOf(all)} of weights, ${sizeOf(readBytes)} before.\n`);
  } finally {
    model.dispose();
  }
}

/** Writes all files, or none. Throws OutputError. */
async function writeFolder(out: string, files: readonly (ModelFile & { stream(): ReadableStream })[]): Promise<void> {
  const place = resolve(out);
  let made: string | undefined;
  try {
    await mkdir(dirname(place), { recursive: true });
    made = await mkdtemp(join(dirname(place), `.${basename(place)}-`));
    for (const file of files) {
      await mkdir(dirname(join(made, file.name)), { recursive: true });
      await writeFile(join(made, file.name), file.stream());
    }
    // Some systems rename no folder to one that exists, even if that is empty.
    await rm(place, { recursive: true, force: true });
    await rename(made, place);
  } catch (cause) {
    if (made !== undefined) await rm(made, { recursive: true, force: true });
    throw new OutputError(out, cause);
  }
}
