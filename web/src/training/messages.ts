// The messages between the page and a training worker.

import type { MemoryInfo } from 'multihead';
import type { TrainingSettings } from './settings.js';

/** Tokens of a sequence. */
export const sequenceLength = 32;

/** A generation ends here: the model is trained on 32 tokens, and half as many more show whether it can go on. */
export const mostTokens = 48;

/** What the model can do after a step, measured on held-out sequences. */
export interface Measured {
  readonly accuracy: number;
  /** (jobs) */
  readonly jobAccuracy: readonly number[];
  /** (layers · heads, patterns): the mean weight of each head on the keys that a pattern asks for. */
  readonly attention: readonly number[];
}

/** A moment of a training. */
export interface Frame extends Measured {
  readonly step: number;
  /** (layers · heads, 32, 32): the attention weights on the sequence of Started. Empty for a small run. */
  readonly maps: Float32Array;
}

/** What a run has done since the last report. */
export interface Progress {
  /** Number of steps done. */
  readonly step: number;
  /** The losses of the steps that end at `step`. */
  readonly losses: readonly number[];
  readonly frames: readonly Frame[];
  /** The steps that the worker can go back to. */
  readonly moments: readonly number[];
  readonly memory: MemoryInfo;
}

export interface Started {
  /** (32): the sequence of the maps, a held-out one. */
  readonly tokens: Int32Array;
  readonly progress: Progress;
}

/** The jobs with all heads, and without the muted ones. */
export interface Muting {
  readonly before: Measured;
  /** (jobs) */
  readonly after: readonly number[];
}

export interface Prompt {
  readonly tokens: readonly number[];
  /** The sequence repeats so many tokens. */
  readonly period: number;
}

/** What one way of computing the next token costs. */
export interface Cost {
  readonly token: number;
  /** Rows of keys and values that were computed. */
  readonly rows: number;
  readonly multiplyAdds: number;
  /** Keys and values that stay in memory for the next token. */
  readonly bytes: number;
  readonly milliseconds: number;
}

export interface Tick {
  readonly length: number;
  readonly cached: Cost;
  readonly plain: Cost;
}

/** The attention weights of the trained model on a held-out sequence. */
export interface TrainedMaps {
  readonly step: number;
  readonly tokens: Int32Array;
  /** (layers · heads, 32, 32) */
  readonly maps: Float32Array;
}

export interface Calls {
  /** Starts anew. If that fails, the run before stays. `small`: without maps, and without moments to go back to. */
  start(settings: TrainingSettings, small: boolean): Started;
  /** Trains until `pause` or step number `until`; gives the rest of the progress at its end. */
  run(until: number): Progress;
  /** Ends a run between two steps. */
  pause(): null;
  /** One step. */
  step(): Progress;
  /** Goes to a moment; further steps go on from there. */
  goTo(step: number): Frame;
  /** Measures on many held-out sequences. */
  measure(): Measured;
  mute(heads: readonly number[]): Muting;
  /** The beginning of a held-out sequence, which `tick` continues. */
  prompt(sequence: number): Prompt;
  /** Computes the next token, with a cache and without one. */
  tick(): Tick;
  maps(sequence: number): TrainedMaps;
  /** Ends the run, and frees everything. */
  end(): MemoryInfo;
}
export type CallName = keyof Calls;

/** `seen` confirms a report; the worker sends one at a time. `ping` asks whether the worker still answers. */
export type Request =
  | { readonly name: CallName; readonly id: number; readonly values: readonly unknown[] }
  | { readonly name: 'seen' }
  | { readonly name: 'ping' };

export type Reply =
  | { readonly kind: 'done'; readonly id: number; readonly value: unknown }
  | { readonly kind: 'failed'; readonly id: number; readonly message: string }
  | { readonly kind: 'report'; readonly progress: Progress }
  | { readonly kind: 'pong' }
  /** The lock that the worker holds for life. */
  | { readonly kind: 'lock'; readonly lock: string };
