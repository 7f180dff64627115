// Messages between a model and its workers. All workers get the same tasks in the same order, and answer each.

import type { SentError } from '../../pool/shared/protocol.js';
import type { TeamCall } from '../../pool/shared/team.js';
import type { Simd } from '../../types/index.js';
import type { GenerationSettings, LoaderInput, PassCall } from '../core/engine.js';

export type Task =
  /** Makes the loader. Its value is {@link WeightLoader.needed}. */
  | { readonly kind: 'plan'; readonly input: LoaderInput }
  | { readonly kind: 'give'; readonly tensor: number; readonly bytes: Uint8Array }
  /** Makes the model. Its value is the model's {@link ModelEngine.info}. */
  | { readonly kind: 'finish' }
  | { readonly kind: 'run'; readonly call: PassCall }
  /** A step of a generation, which begins with the `settings`. */
  | { readonly kind: 'step'; readonly id: number; readonly settings: GenerationSettings | undefined };

export type Request =
  | { readonly kind: 'start'; readonly module: WebAssembly.Module; readonly simd: Simd }
  /** In a team, only the first member sends its result, which is the same in all members. */
  | { readonly kind: 'task'; readonly task: Task; readonly team: TeamCall | undefined }
  /** Ends a generation. It has no answer. */
  | { readonly kind: 'release'; readonly id: number };

export type Answer =
  | { readonly kind: 'done'; readonly value: unknown }
  /** `dead`: the WebAssembly instance trapped. */
  | { readonly kind: 'failed'; readonly error: SentError; readonly dead: boolean };

export type Reply = { readonly kind: 'ready' } | { readonly kind: 'broken'; readonly error: SentError } | Answer;
