// The messages between the page and a training worker.

import type { MemoryInfo } from 'multihead';
import type { LayerHeads } from '../attention/messages.js';
import type { Peeked } from './peek.js';
import type { TrainingSettings } from './settings.js';

/** Number of tokens in a sequence. */
export const sequenceLength = 32;

/**
 * Number of tokens at which a generation ends. The model is trained on 32 tokens; 16 more show whether it can go on.
 */
export const mostTokens = 48;

/** Accuracy and attention of the model after a step, measured on held-out sequences. */
export interface Measured {
  readonly accuracy: number;
  /** (jobs): the accuracy in each job. */
  readonly jobAccuracy: readonly number[];
  /** (layers · heads, patterns): the mean weight of each head on the keys of each pattern. */
  readonly attention: readonly number[];
}

export interface Frame extends Measured {
  readonly step: number;
  /** (layers · heads, 32, 32): the attention weights on `tokens` of Started. */
  readonly maps: Float32Array;
}

export interface Progress {
  /** Number of the run in its worker, which counts its starts. Reports of a run that was replaced may still be on their way. */
  readonly run: number;
  readonly step: number;
  /** The losses of the steps since the last report, up to `step`. */
  readonly losses: readonly number[];
  readonly frames: readonly Frame[];
  readonly moments: readonly number[];
  readonly memory: MemoryInfo;
}

export interface Started {
  /** (32): the held-out sequence on which the maps are computed. */
  readonly tokens: Int32Array;
  readonly progress: Progress;
}

/** Accuracy in each job with all heads, and without the muted heads. */
export interface Muting {
  readonly before: Measured;
  /** (jobs): the accuracy without the muted heads. */
  readonly after: readonly number[];
}

export interface Prompt {
  readonly tokens: readonly number[];
  /** In tokens. */
  readonly period: number;
}

/** Cost of the next token, computed with a KV cache or without one. */
export interface Cost {
  readonly token: number;
  /** Rows of keys and values that were computed. */
  readonly rows: number;
  readonly multiplyAdds: number;
  /** Bytes of keys and values that stay in memory for the next token. */
  readonly bytes: number;
  readonly milliseconds: number;
}

export interface Tick {
  readonly length: number;
  readonly cached: Cost;
  readonly plain: Cost;
}

export interface TrainedHeads extends LayerHeads {
  /** True if they read letters of the text, false if they read the sequence of the maps. */
  readonly ofText: boolean;
}

/** The functions of a training worker. Its events are reports of type Progress. */
export interface TrainingCalls {
  /**
   * Starts a new run. If that fails, the previous run stays. `small`: without measuring the heads, and without moments to go back to.
   */
  start(settings: TrainingSettings, small: boolean): Started;
  /** Trains until `pause`, or until step number `until`. Returns the progress since the last report. */
  run(until: number): Progress;
  pause(): null;
  step(): Progress;
  /** Restores the model of a saved moment; further steps continue from there. */
  goTo(step: number): Frame;
  /** Measures on many held-out sequences. */
  measure(): Measured;
  mute(heads: readonly number[]): Muting;
  /** The heads of a layer, of the last one if `layer` is null, on the letters of a text that the model knows. */
  heads(text: string, layer: number | null): TrainedHeads;
  /** The beginning of a held-out sequence, which `tick` continues. */
  prompt(sequence: number): Prompt;
  tick(): Tick;
  /** Trains the two models of the story's scene about the mask; `fresh` begins anew. */
  peek(steps: number, fresh: boolean): Peeked;
  /** Confirms a report; the worker sends one at a time. */
  seen(): void;
  end(): MemoryInfo;
}
