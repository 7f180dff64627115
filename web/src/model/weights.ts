// The type of a model's weights in memory.

import type { ModelWeights } from 'multihead/models';

/** `auto`: int8 for large files, else as stored. */
export const weightChoices = ['auto', 'f32', 'f16', 'bf16', 'int8', 'int4'] as const;
export type WeightChoice = (typeof weightChoices)[number];

/** Files above this size are kept as int8 unless the visitor chooses: 100 MB. */
export const mostAsStored = 100e6;

/** The option of openModel(); undefined for weights as stored. */
export function weightsFor(choice: WeightChoice, fileBytes: number): ModelWeights | undefined {
  if (choice !== 'auto') return choice;
  return fileBytes > mostAsStored ? 'int8' : undefined;
}

/** Bytes of the weights in memory, about; those of files are taken for f16. */
export function bytesAs(choice: WeightChoice, fileBytes: number): number {
  const weights = weightsFor(choice, fileBytes);
  return weights === undefined ? fileBytes : (fileBytes / 2) * { f32: 4, f16: 2, bf16: 2, int8: 1.1, int4: 0.6 }[weights];
}
