// Messages between a pool and its workers. `taskBuffer` carries the operands of a task to the worker and the results
// back. It is transferred with the message, or is shared memory.

import type { BackwardPart } from '../../generated/wire.js';
import type { MultiheadErrorCode } from '../../runtime/errors.js';
import type { AttentionOptions, DType, FloatDType, Shape, Simd } from '../../types/index.js';
import type { Extents } from '../../types/wire.js';
import type { TeamCall } from './team.js';

/** A byte range. `buffer` is undefined for the task's own buffer; else shared memory or a buffer transferred by the caller. */
export interface Place {
  readonly buffer: ArrayBufferLike | undefined;
  readonly offset: number;
  readonly bytes: number;
}

/**
 * A range of work: key/value heads firstHead … endHead − 1 (index batch · H_kv + head), and for each of them the row
 * blocks firstBlock … endBlock − 1.
 */
export interface WorkRange {
  readonly firstHead: number;
  readonly endHead: number;
  readonly firstBlock: number;
  readonly endBlock: number;
}

/** A result: one row of `width` elements for each query of each query head, or for each captured row. */
export interface OutputSpec {
  readonly name: string;
  readonly dtype: DType;
  /** Shape of the whole result. */
  readonly shape: Shape;
  readonly width: number;
  readonly capture: CaptureRows | undefined;
}

export interface CaptureRows {
  /** Query heads, in the order of the result; undefined for all. */
  readonly heads: readonly number[] | undefined;
  readonly firstRow: number;
  readonly rows: number;
}

/** A tensor in a task: all its elements, or only the heads of the part. */
export interface SentTensor {
  /** Shape of the whole tensor. */
  readonly shape: Shape;
  readonly place: Place;
}

/** The part of an attention() call that one worker computes. */
export interface PartCall {
  readonly q: SentTensor;
  readonly k: SentTensor;
  readonly v: SentTensor;
  readonly qDType: FloatDType;
  readonly kDType: FloatDType;
  readonly mask: SentTensor | undefined;
  readonly bias: SentTensor | undefined;
  /** Options of the call, without mask, bias and out. */
  readonly options: Omit<AttentionOptions, 'mask' | 'bias' | 'out'>;
  /** The key/value heads whose rows of q, k and v are sent. */
  readonly firstHead: number;
  readonly endHead: number;
  /** True if q, k and v are one sequence of an attentionVarlen() call. */
  readonly packed: boolean;
  readonly ranges: readonly WorkRange[];
  readonly blockRows: number;
  readonly outputs: readonly OutputSpec[];
  /** The caller's `out` if it is shared memory: the worker writes its rows there. */
  readonly sharedOut: Place | undefined;
}

/**
 * A value that a message cannot carry: its path in the argument, and a description. The worker puts a placeholder
 * there, so that the call fails with the same error as on one thread.
 */
export type Placeholder = { readonly path: readonly string[] } & (
  | { readonly kind: 'function' }
  | { readonly kind: 'symbol'; readonly text: string | undefined }
  | { readonly kind: 'disposed tensor'; readonly dtype: DType; readonly shape: Extents }
  /** Messages carry the properties of an object, but not its class. */
  | { readonly kind: 'class'; readonly noun: string }
);

export interface SentValue {
  readonly value: unknown;
  readonly placeholders: readonly Placeholder[];
}

/** An argument of a call: a value, or an object that lives in the worker. */
export type Argument = SentValue | { readonly object: number };

/** Operations of `mh` that a worker runs whole. */
export type Verb =
  | 'attentionVarlen'
  | 'attentionBackward'
  | 'attentionVarlenBackward'
  | 'latentAttention'
  | 'linear'
  | 'rotate'
  | 'headStatistics'
  | 'memory';

/** Operations of `mh` that make an object. `scores` makes an object whose rows() computes a range of rows. */
export type Maker = 'multiHeadAttention' | 'transformerBlock' | 'transformer' | 'createCache' | 'trainer' | 'experiment' | 'scores';

/** Tasks for objects. An object that several workers share has the same id in all of them. */
export type ObjectTask =
  | { readonly kind: 'make'; readonly id: number; readonly maker: Maker; readonly args: readonly Argument[] }
  | { readonly kind: 'makeCache'; readonly id: number; readonly object: number; readonly args: readonly Argument[] }
  | { readonly kind: 'call'; readonly object: number; readonly method: string; readonly args: readonly Argument[] };

/** Tasks of a worker. The worker sends one {@link Answer} to each, which returns the `transferred` buffers. */
export type Task =
  | {
      readonly kind: 'part';
      readonly part: PartCall;
      readonly taskBuffer: ArrayBufferLike;
      readonly transferred?: readonly ArrayBuffer[];
    }
  | {
      readonly kind: 'run';
      readonly verb: Verb;
      readonly args: readonly Argument[];
      readonly transferred?: readonly ArrayBuffer[];
    }
  /** attentionBackward() of some batch entries and heads; inputs and options are already cut to the part. */
  | { readonly kind: 'backwardPart'; readonly args: readonly Argument[]; readonly part: Readonly<Record<keyof BackwardPart, number>> }
  | ObjectTask;

/** Buffers that come back with an answer. */
export interface Returned {
  readonly taskBuffer: ArrayBufferLike | undefined;
  readonly transferred: readonly ArrayBuffer[];
}

/** A message to a worker, of a pool or of a model. `T` is the type of its tasks. */
export type WorkerRequest<T> =
  | { readonly kind: 'start'; readonly module: WebAssembly.Module; readonly simd: Simd }
  /** In a team, only the first member sends its result, which is the same in all members. */
  | { readonly kind: 'task'; readonly task: T; readonly team: TeamCall | undefined }
  /** Frees an object of the worker. It has no answer. */
  | { readonly kind: 'release'; readonly id: number };

/** A message from a worker: it replies once to the start, and answers each task by an `A`. */
export type WorkerReply<A> = { readonly kind: 'ready' } | { readonly kind: 'broken'; readonly error: SentError } | A;

export type Request = WorkerRequest<Task>;

/** A MultiheadError, or the name and message of another error. */
export interface SentError {
  readonly code: MultiheadErrorCode | undefined;
  readonly argument: string;
  readonly expected: string;
  readonly got: string;
  readonly message: string;
}

export type Answer =
  | { readonly kind: 'done'; readonly value: unknown; readonly back: Returned }
  /** `dead`: the WebAssembly instance trapped, so the worker must be replaced. */
  | {
      readonly kind: 'failed';
      readonly error: SentError;
      readonly dead: boolean;
      readonly back: Returned;
    };

export type Reply = WorkerReply<Answer>;
