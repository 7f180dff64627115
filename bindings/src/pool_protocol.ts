// The messages between a pool and its workers. Numbers travel in slots: buffers that hold the operands of a task on
// the way there and its results on the way back. A slot is transferred with the message, or is shared memory.

import type { Extents } from './arguments.js';
import type { MultiheadErrorCode } from './errors.js';
import type { TeamCall } from './team.js';
import type { AttentionOptions, DType, FloatDType, Shape, Simd } from './types.js';
import type { BackwardPart } from './wire.js';

/** Bytes in the slot of the message, or in other memory: shared, or lent by the caller. */
export interface Place {
  readonly buffer: ArrayBufferLike | undefined;
  readonly offset: number;
  readonly bytes: number;
}

/** Key/value heads of all batch entries (batch · H_kv + head), and blocks of the rows of each. */
export interface Box {
  readonly firstHead: number;
  readonly endHead: number;
  readonly firstBlock: number;
  readonly endBlock: number;
}

/** A result: rows of `width` elements, one for each query of each query head, or those of a capture. */
export interface OutputSpec {
  readonly name: string;
  readonly dtype: DType;
  /** Of the whole result. */
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

/** A tensor of which the heads of a part, or all elements, lie at a place. */
export interface SentTensor {
  /** Of the whole tensor. */
  readonly shape: Shape;
  readonly place: Place;
}

/** What one worker computes of a call of attention(). */
export interface PartCall {
  readonly q: SentTensor;
  readonly k: SentTensor;
  readonly v: SentTensor;
  readonly qDType: FloatDType;
  readonly kDType: FloatDType;
  readonly mask: SentTensor | undefined;
  readonly bias: SentTensor | undefined;
  /** Those of the call, without mask, bias and out. */
  readonly options: Omit<AttentionOptions, 'mask' | 'bias' | 'out'>;
  /** The key/value heads whose rows of q, k and v are sent. */
  readonly firstHead: number;
  readonly endHead: number;
  /** Whether q, k and v are one sequence of a call of attentionVarlen(). */
  readonly packed: boolean;
  readonly boxes: readonly Box[];
  readonly blockRows: number;
  readonly outputs: readonly OutputSpec[];
  /** Where `out` is written if it is shared memory of the caller's. */
  readonly sharedOut: Place | undefined;
}

/** What a message cannot carry of a value: where in the argument, and what it was. The call is refused as it would be on one thread. */
export type StandIn = { readonly path: readonly string[] } & (
  | { readonly kind: 'function' }
  | { readonly kind: 'symbol'; readonly text: string | undefined }
  | { readonly kind: 'disposed tensor'; readonly dtype: DType; readonly shape: Extents }
  /** Messages keep the properties of an object, and not its class. */
  | { readonly kind: 'class'; readonly name: string }
);

export interface SentValue {
  readonly value: unknown;
  readonly standIns: readonly StandIn[];
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

/** Operations of `mh` that make an object. `scores` makes one whose rows() gives some rows. */
export type Maker =
  | 'multiHeadAttention'
  | 'transformerBlock'
  | 'transformer'
  | 'createCache'
  | 'trainer'
  | 'experiment'
  | 'scores';

/** What is asked of objects. An object that several workers share has the same id in all of them. */
export type ObjectTask =
  | { readonly kind: 'make'; readonly id: number; readonly maker: Maker; readonly args: readonly Argument[] }
  | { readonly kind: 'makeCache'; readonly id: number; readonly object: number; readonly args: readonly Argument[] }
  | { readonly kind: 'call'; readonly object: number; readonly method: string; readonly args: readonly Argument[] };

/** What a worker is asked. Every task is answered by one {@link Answer}, which gives back what was `lent`. */
export type Task =
  | {
      readonly kind: 'part';
      readonly part: PartCall;
      readonly slot: ArrayBufferLike;
      readonly lent?: readonly ArrayBuffer[];
    }
  | {
      readonly kind: 'run';
      readonly verb: Verb;
      readonly args: readonly Argument[];
      readonly lent?: readonly ArrayBuffer[];
    }
  /** attentionBackward() of some batch entries and heads: inputs and options are those of the part. */
  | { readonly kind: 'backwardPart'; readonly args: readonly Argument[]; readonly part: Readonly<Record<keyof BackwardPart, number>> }
  | ObjectTask;

/** Buffers that come back with an answer. */
export interface Returned {
  readonly slot: ArrayBufferLike | undefined;
  readonly lent: readonly ArrayBuffer[];
}

export type Request =
  | { readonly kind: 'start'; readonly module: WebAssembly.Module; readonly simd: Simd }
  /** With a team, only the first member sends its result, which is that of all. */
  | { readonly kind: 'task'; readonly task: Task; readonly team: TeamCall | undefined }
  | { readonly kind: 'release'; readonly object: number };

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
  /** `dead`: the instance trapped, and its worker has to be replaced. */
  | {
      readonly kind: 'failed';
      readonly error: SentError;
      readonly dead: boolean;
      readonly back: Returned;
    };

export type Reply = { readonly kind: 'ready' } | { readonly kind: 'broken'; readonly error: SentError } | Answer;
