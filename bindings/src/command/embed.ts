// multihead embed: one vector for each text, and how similar they are.

import { printable } from '../runtime/text.js';
import type { EmbedOptions, ModelInput, Pooling } from '../types/models.js';
import { choice, flag, type Option, parse, text, type Values } from './arguments.js';
import { type Opened, readerOf, readInputs, type Session, sharedOptions, withModel } from './session.js';

const poolings: Readonly<Record<string, Pooling | undefined>> = {
  ...{ folder: undefined, mean: 'mean', first: 'firstToken', last: 'lastToken', max: 'max' },
  ...{ 'mean-sqrt-length': 'meanSqrtLength', 'weighted-mean': 'weightedMean' },
};
const truncations: Readonly<Record<string, boolean | undefined>> = { folder: undefined, yes: true, no: false };

export const embedOptions = {
  pooling: choice('how a vector is made of the tokens', Object.keys(poolings), 'folder'),
  raw: flag("vectors as the folder's modules give them, and not of length 1"),
  truncate: choice('cuts what is too long', Object.keys(truncations), 'folder'),
  prompt: text('TEXT', 'a text before each text', 'a text', () => true),
  promptName: text('NAME', 'the name of a prompt of the folder', 'a name', (value) => value !== ''),
  ...sharedOptions,
} satisfies Record<string, Option<unknown>>;

/** Cosines of all pairs of vectors. */
function similaritiesOf(vectors: readonly Float32Array[]): number[][] {
  const lengths = vectors.map((vector) => Math.hypot(...vector));
  const product = (a: Float32Array, b: Float32Array): number => a.reduce((sum, value, at) => sum + value * (b[at] as number), 0);
  return vectors.map((a, i) => vectors.map((b, j) => product(a, b) / ((lengths[i] as number) * (lengths[j] as number) || 1)));
}

export async function embed(args: readonly string[], session: Session): Promise<void> {
  const { values, positionals } = parse(args, embedOptions);
  const { folder, inputs } = readInputs(positionals, values, Infinity);
  await withModel(session, folder, values, (opened) => compare(readerOf(opened), inputs, values, session));
}

async function compare(
  { model, description }: Opened,
  inputs: readonly ModelInput[],
  values: Values<typeof embedOptions>,
  { output, interrupt }: Session,
): Promise<void> {
  const { pooling, raw, truncate, prompt, promptName } = values;
  const options: EmbedOptions = {
    ...{ pooling: poolings[pooling], truncate: truncations[truncate], normalize: !raw },
    ...{ prompt, promptName, signal: interrupt.signal },
  };
  const vectors = await model.embed(inputs, options);
  const similarities = similaritiesOf(vectors);
  const names = inputs.map((input) => (typeof input === 'string' ? input : input.join(',')));
  if (values.json) {
    await output.json({ ...description, inputs, vectors: vectors.map((vector) => [...vector]), similarities });
    return;
  }
  const width = Math.max(6, String(names.length).length + 1);
  const numbers = names.map((_, at) => String(at + 1));
  const labels = numbers.map((label) => label.padStart(width));
  await output.write(`${' '.repeat(width)}${labels.join(' ')}\n`);
  for (const [row, name] of names.entries()) {
    const cosines = (similarities[row] ?? []).map((cosine) => cosine.toFixed(3).padStart(width));
    await output.write(`${labels[row]}${cosines.join(' ')}  ${printable(name, 60)}\n`);
  }
}
