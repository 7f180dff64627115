// The settings of a training that the visitor chooses, their limits, and facts about each kind of training.

import type { ExperimentKind } from 'multihead';

export interface TrainingSettings {
  readonly kind: ExperimentKind;
  readonly seed: number;
  readonly heads: number;
  readonly layers: number;
  readonly rate: number;
}

export interface KindFacts {
  readonly kind: ExperimentKind;
  readonly title: string;
  readonly line: string;
  readonly embedDim: number;
  readonly vocabSize: number;
  readonly steps: number;
  readonly heads: number;
  readonly layers: number;
  /** The patterns that a head can learn, in the order of Experiment.patterns; `short` is for narrow cells. */
  readonly patterns: readonly { readonly name: string; readonly short: string }[];
  /** The jobs of the model, in the order of Experiment.jobs. */
  readonly jobs: readonly string[];
  readonly tokens: readonly string[];
}

const letters = (text: string): string[] => [...text];

export const kinds: readonly KindFacts[] = [
  {
    kind: 'fourJobs',
    title: 'Four jobs, four heads',
    line: 'At every position the model must report four things: the previous token, the token two back, the latest vowel and the latest star.',
    embedDim: 64,
    vocabSize: 24,
    steps: 600,
    heads: 4,
    layers: 1,
    patterns: [
      { name: 'previous token', short: '−1' },
      { name: 'two back', short: '−2' },
      { name: 'latest vowel', short: 'vowel' },
      { name: 'latest star', short: 'star' },
    ],
    jobs: ['previous token', 'two back', 'latest vowel', 'latest star'],
    tokens: letters('bcdfghjklmnpqrstaeio★☆✦✧'),
  },
  {
    kind: 'induction',
    title: 'Induction',
    line: 'The sequence repeats itself, each time with another period. The model must say what comes next: find where the same token occurred before, and copy what followed it.',
    embedDim: 32,
    vocabSize: 32,
    steps: 400,
    heads: 2,
    layers: 2,
    patterns: [
      { name: 'previous token', short: 'previous' },
      { name: 'induction', short: 'induction' },
    ],
    jobs: ['next token'],
    tokens: letters('ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'),
  },
];

export const kindNames = ['fourJobs', 'induction'] as const satisfies readonly ExperimentKind[];

export const factsOf = (wanted: ExperimentKind): KindFacts => kinds.find(({ kind }) => kind === wanted)!;

/** With this seed every head learns a different job, in both experiments and with both builds of the module. */
export const defaultSeed = 12;

export const headChoices: readonly number[] = [1, 2, 4, 8];
export const layerChoices: readonly number[] = [1, 2, 3, 4];
export const mostSeed = 999_999;
export const rates = { least: 1e-5, most: 1, usual: 0.01 } as const;

/** Reads the settings from the page's state; null stands for the usual value. */
export function settingsOf(state: {
  readonly train: ExperimentKind;
  readonly seed: number;
  readonly trainHeads: number | null;
  readonly layers: number | null;
  readonly rate: number;
}): TrainingSettings {
  const { train: kind, seed, rate } = state;
  const usual = factsOf(kind);
  return { kind, seed, rate, heads: state.trainHeads ?? usual.heads, layers: state.layers ?? usual.layers };
}

/** The settings in words: "4 heads, seed 12", and other settings only if they are unusual. */
export function describeSettings({ kind, heads, layers, seed, rate }: TrainingSettings): string {
  const usual = factsOf(kind);
  const parts = [`${heads} ${heads === 1 ? 'head' : 'heads'}`];
  if (layers !== 1 || usual.layers !== 1) parts.push(`${layers} ${layers === 1 ? 'layer' : 'layers'}`);
  parts.push(`seed ${seed}`);
  if (rate !== rates.usual) parts.push(`rate ${rate}`);
  return parts.join(', ');
}

/**
 * The settings of the smaller model that trains for comparison: one head, or one layer. Undefined if the model is
 * already that small.
 */
export function smaller(settings: TrainingSettings): TrainingSettings | undefined {
  if (settings.kind === 'fourJobs') return settings.heads > 1 ? { ...settings, heads: 1 } : undefined;
  return settings.layers > 1 ? { ...settings, layers: 1 } : undefined;
}

/** A head carries the badge of a job if at least this share of its weight is on the right keys. */
export const earned = 0.75;
