// Messages between a model and its workers. All workers get the same tasks in the same order, and answer each.

import type { SentError, WorkerReply, WorkerRequest } from '../../pool/shared/protocol.js';
import type { GenerationSettings, LoaderInput, PassCall } from '../core/engine.js';

export type Task =
  /** Takes the functions of a part into the worker's instance. */
  | { readonly kind: 'link'; readonly module: WebAssembly.Module }
  /** Makes the loader. Its value is {@link WeightLoader.needed}. */
  | { readonly kind: 'plan'; readonly input: LoaderInput }
  | { readonly kind: 'give'; readonly tensor: number; readonly bytes: Uint8Array }
  /** Makes the model. Its value is the model's {@link ModelEngine.info}. */
  | { readonly kind: 'finish' }
  | { readonly kind: 'run'; readonly call: PassCall }
  /** A call of a generation, which begins with the `settings`: next(), logits(), fill(), or choose() with these logits. */
  | { readonly kind: 'step'; readonly id: number; readonly settings: SentSettings | undefined; readonly what: Step }
  | Analysis
  | SweepStep
  /** One pass for several generations. */
  | { readonly kind: 'together'; readonly ids: readonly number[] };

/** A method of CoreAnalyses. */
export interface Analysis {
  readonly kind: 'analyze';
  readonly name: 'lens' | 'logProbabilities' | 'measure';
  readonly args: readonly unknown[];
}

/** The next runs of a sweep, which begins with `make`, or what JavaScript made of their logits. */
export interface SweepStep {
  readonly kind: 'sweep';
  readonly id: number;
  readonly make?: { readonly name: 'patch' | 'ablate'; readonly args: readonly unknown[] } | undefined;
  readonly metrics?: readonly number[];
}

export type Step = 'next' | 'logits' | 'fill' | Float32Array;

/** A prefix is a generation of the workers. */
export type SentSettings = Omit<GenerationSettings, 'prefix'> & { readonly prefix: { readonly id: number; readonly common: number } | undefined };

/** A `release` ends a generation. */
export type Request = WorkerRequest<Task>;

export type Answer =
  | { readonly kind: 'done'; readonly value: unknown }
  /** `dead`: the WebAssembly instance trapped. */
  | { readonly kind: 'failed'; readonly error: SentError; readonly dead: boolean };

export type Reply = WorkerReply<Answer>;
