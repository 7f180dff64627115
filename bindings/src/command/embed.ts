// multihead embed: one vector for each text, and how similar they are.

import { printable } from '../runtime/text.js';
import type { ModelInput } from '../types/models.js';
import { choice, type Option, parse, type Values } from './arguments.js';
import { type Opened, readInputs, type Session, sharedOptions, withModel } from './session.js';

const poolings = { mean: 'mean', first: 'firstToken' } as const;

export const embedOptions = {
  pooling: choice('the mean over tokens, or the first token', ['folder', 'mean', 'first'], 'folder'),
  ...sharedOptions,
} satisfies Record<string, Option<unknown>>;

/** Cosines of all pairs of vectors of length 1. */
const similaritiesOf = (vectors: readonly Float32Array[]): number[][] =>
  vectors.map((a) => vectors.map((b) => a.reduce((sum, value, at) => sum + value * (b[at] as number), 0)));

export async function embed(args: readonly string[], session: Session): Promise<void> {
  const { values, positionals } = parse(args, embedOptions);
  const { folder, inputs } = readInputs(positionals, values, Infinity);
  await withModel(session, folder, values, () => undefined, (opened) => compare(opened, inputs, values, session));
}

async function compare(
  { model, description }: Opened,
  inputs: readonly ModelInput[],
  values: Values<typeof embedOptions>,
  { output }: Session,
): Promise<void> {
  const vectors = await model.embed(inputs, values.pooling === 'folder' ? {} : { pooling: poolings[values.pooling] });
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
