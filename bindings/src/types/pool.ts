// The public types of multihead/pool.

import type { AttentionBackwardInputs, AttentionBackwardOptions, AttentionBackwardResult, AttentionOptions, AttentionResult } from './index.js';
import type {
  AttentionReturn,
  Capture,
  DisposableObject,
  ExperimentOptions,
  FloatDType,
  FloatTensorLike,
  GradientName,
  HeadStatistics,
} from './index.js';
import type { HeadStatisticsOptions, KVCacheConfig, LatentAttentionInputs, LatentAttentionOptions, LinearOptions, LoadOptions } from './index.js';
import type { MemoryInfo, Multihead, MultiHeadAttentionConfig, PlainTensor, RopeRotation, ScoreRows, ScoresOptions, Simd } from './index.js';
import type { TensorLike, TrainerOptions, TransformerBlockConfig, TransformerConfig, VarlenBackwardOptions } from './index.js';
import type { VarlenBackwardResult, VarlenGradientName, VarlenOptions, VarlenResult } from './index.js';
import type { Plain, PoolCallOptions, Pooled, PoolExperiment, PoolKVCache, PoolMultiHeadAttention, PoolObjectOptions } from './pool_objects.js';
import type { PoolTrainer, PoolTransferOptions, PoolTransformer, PoolTransformerBlock, TransferResult } from './pool_objects.js';

export type {
  Plain,
  PoolCallOptions,
  PoolExperiment,
  PoolKVCache,
  PoolModuleCache,
  PoolMultiHeadAttention,
  PoolObject,
  PoolObjectOptions,
  PoolParameterModule,
  PoolTrainer,
  PoolTransferOptions,
  PoolTransformer,
  PoolTransformerBlock,
  TransferResult,
} from './pool_objects.js';

/** Options of {@link createPool}. */
export interface PoolOptions extends LoadOptions {
  /**
   * Number of workers, from 1 to 64, each with an instance of the WebAssembly module. `'all'`: one for each core of the
   * machine, at most 64. Default `'all'`. Create a pool on the page's thread: Firefox 153 never returns from 1 of 50
   * `new Worker()` in a worker, and the worker that made the call hangs.
   */
  readonly workers?: number | 'all' | undefined;
  /** Most calls that may be pending; one more is rejected with `E_BUSY`. Default 1000. */
  readonly queue?: number | undefined;
  /**
   * `'messages'` never uses shared memory. `'auto'` uses it in Node and on cross-origin isolated pages, else messages.
   * Default `'auto'`.
   */
  readonly exchange?: 'auto' | 'messages' | undefined;
  /**
   * `attention` and `attentionVarlen` use one more worker for each `leastWork` multiplications and additions of a call:
   * with fewer, sending the operands takes longer than another worker saves. Default 4 000 000.
   */
  readonly leastWork?: number | undefined;
  /**
   * Milliseconds that a worker gets to finish its part of an aborted call. After that, the worker is ended and
   * replaced, so that a long call cannot block the pool. Objects of that worker are lost: their calls are rejected with
   * `E_WORKER`, whose message says so. `Infinity` never ends a worker. Default 1000, or 10 000 for a worker that holds
   * objects.
   */
  readonly abortGrace?: number | undefined;
  /**
   * Makes a new worker each time that the pool needs one. Use it where the Content-Security-Policy requires Trusted Types,
   * with an address that a policy made, or where a bundler or Electron starts workers in another way. The worker must run
   * the script `multihead/pool_worker.js` of the package, which is both a module and a classic script; another script never
   * answers, and `createPool` waits until its `signal` is aborted. If the function throws, calls run on the calling thread,
   * and `pool.backend.why` has its message. Default: the package starts its script.
   */
  readonly worker?: (() => PoolWorker) | undefined;
}

/** A `Worker` of a browser, or of Node's `node:worker_threads`. */
export interface PoolWorker {
  /** Sends a message, and transfers these buffers with it. */
  postMessage(message: unknown, transfer: ArrayBuffer[]): void;
  /** Ends the worker at once. */
  terminate(): unknown;
}

/** Current state of a pool. */
export interface PoolBackend {
  /** Number of running workers; 0 if calls run on the calling thread. */
  readonly workers: number;
  /**
   * Transport of operands and results to workers and back. With shared memory, the caller's arrays in a
   * `SharedArrayBuffer` are used without a copy.
   */
  readonly exchange: 'messages' | 'shared memory';
  /** The WebAssembly build that the workers loaded. */
  readonly simd: Simd;
  /** Version of the package. */
  readonly version: string;
  /**
   * A sentence that explains the state, for example "4 workers, messages: the page is not cross-origin isolated", or
   * "no worker could be started, so calls run on the calling thread: " and the reason.
   */
  readonly why: string;
}

/**
 * The operations of {@link Multihead} as promises, on several threads. Operands are plain { data, shape } or tensors of
 * any instance, and are copied before a call returns its promise; results are plain. Results are bit-identical to one
 * thread, for any number of workers. All promises settle. A promise is rejected with the error that the same call of
 * `mh` throws, or with `E_ABORTED` by its `signal`, `E_WORKER` when its worker ends, `E_BUSY` when too many calls are
 * pending, and `E_DISPOSED` when the pool or the object is disposed.
 */
export interface Pool extends DisposableObject {
  /** Current state of the pool. */
  readonly backend: PoolBackend;

  /**
   * {@link Multihead.attention}, divided among the workers by batch entries, heads and, where these are few, query rows.
   * With shared memory, operands and an `out` whose arrays lie in a `SharedArrayBuffer` are not copied by this thread;
   * do not change them before the promise settles. An `out` that has bytes in common with an operand, or with an array
   * among the options, is refused with `E_OPTION`. Bytes are compared within one buffer object: if a `SharedArrayBuffer`
   * came to this thread in two messages, these are two objects, which the pool cannot tell apart from two memories.
   *
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`, `E_ABORTED`, `E_WORKER`, `E_BUSY`. `out` may
   * then have some of the rows. After an abort, workers may write to an `out` in shared memory until they finish or end.
   */
  attention<
    const R extends readonly AttentionReturn[] = [],
    const O extends FloatDType = 'f32',
    const C extends readonly Capture[] = [],
    const T extends boolean = false,
  >(
    q: FloatTensorLike,
    k: FloatTensorLike,
    v: FloatTensorLike,
    options?: Pooled<AttentionOptions<R, O, C>> & PoolTransferOptions<T> & { readonly out?: PlainTensor<O> | undefined },
  ): Promise<Plain<AttentionResult<R, O, C>> & TransferResult<T, 'q' | 'k' | 'v'>>;

  /**
   * {@link Multihead.attentionVarlen}, divided by sequences; long sequences are also divided by heads and query rows.
   */
  attentionVarlen<const R extends readonly 'lse'[] = [], const O extends FloatDType = 'f32', const T extends boolean = false>(
    q: FloatTensorLike,
    k: FloatTensorLike,
    v: FloatTensorLike,
    options: Pooled<VarlenOptions<R, O>> & PoolTransferOptions<T>,
  ): Promise<Plain<VarlenResult<R, O>> & TransferResult<T, 'q' | 'k' | 'v'>>;

  /**
   * {@link Multihead.scores}: workers compute some chunks of rows ahead. Leaving the loop early frees their memory. The
   * operands are copied at the call; the first `next()` throws any error about them. If a worker ends, another one
   * computes its chunk once more.
   */
  scores(q: FloatTensorLike, k: FloatTensorLike, options: ScoresOptions & PoolCallOptions): AsyncGenerator<ScoreRows, void, undefined>;

  /**
   * {@link Multihead.attentionBackward}, divided by batch entries and key/value heads. The terms of a sum stay in one
   * worker: all batch entries for `dSinks`, all entries or heads that share a bias for its `dBias`, and the whole call for
   * `dQGain` and `dKGain`.
   */
  attentionBackward<const R extends readonly GradientName[] | undefined = undefined, const T extends boolean = false>(
    inputs: AttentionBackwardInputs,
    options?: Pooled<AttentionBackwardOptions<R>> & PoolTransferOptions<T>,
  ): Promise<Plain<AttentionBackwardResult<R>> & TransferResult<T, keyof AttentionBackwardInputs>>;

  /**
   * {@link Multihead.attentionVarlenBackward}, divided by sequences; long sequences are also divided by key/value
   * heads. With `dSinks` it is divided by heads only, or not at all with dropout. With `dQGain` or `dKGain` one worker
   * runs it.
   */
  attentionVarlenBackward<const R extends readonly VarlenGradientName[] | undefined = undefined, const T extends boolean = false>(
    inputs: AttentionBackwardInputs,
    options: Pooled<VarlenBackwardOptions<R>> & PoolTransferOptions<T>,
  ): Promise<Plain<VarlenBackwardResult<R>> & TransferResult<T, keyof AttentionBackwardInputs>>;

  /** {@link Multihead.latentAttention} in one worker. */
  latentAttention<const R extends readonly ('lse' | 'weights')[] = []>(
    inputs: LatentAttentionInputs,
    options: Pooled<LatentAttentionOptions<R>>,
  ): Promise<Plain<AttentionResult<R>>>;

  /** {@link Multihead.linear} in one worker. */
  linear(x: TensorLike, weight: TensorLike, options?: Pooled<LinearOptions>): Promise<PlainTensor>;

  /** {@link Multihead.rotate} in one worker. */
  rotate(x: TensorLike, positions: Int32Array, rope: RopeRotation, options?: PoolCallOptions): Promise<PlainTensor>;

  /** `headStatistics()` of `multihead/lab` in one worker. */
  headStatistics(weights: TensorLike, options?: HeadStatisticsOptions & PoolCallOptions): Promise<HeadStatistics>;

  /**
   * Makes a module in one or several workers; new modules go to the workers with the fewest objects. Dispose it after
   * use.
   */
  multiHeadAttention(config: MultiHeadAttentionConfig, options?: PoolObjectOptions): Promise<PoolMultiHeadAttention>;
  /** Makes a block in one or several workers, like {@link Pool.multiHeadAttention}. */
  transformerBlock(config: TransformerBlockConfig, options?: PoolObjectOptions): Promise<PoolTransformerBlock>;
  /** Makes a transformer in one or several workers, like {@link Pool.multiHeadAttention}. */
  transformer(config: TransformerConfig, options?: PoolObjectOptions): Promise<PoolTransformer>;
  /** Makes a trainer in the workers of its model, which share the forward passes of its steps. */
  trainer(model: PoolTransformer, options?: TrainerOptions & PoolCallOptions): Promise<PoolTrainer>;
  /** Makes an experiment in one worker. Dispose it after use. */
  experiment(options?: ExperimentOptions & PoolCallOptions): Promise<PoolExperiment>;
  /** Makes an empty cache of keys and values in one or several workers. Dispose it after use. */
  createCache(config: KVCacheConfig, options?: PoolObjectOptions): Promise<PoolKVCache>;

  /** Memory that one of the workers has allocated. */
  memory(options?: PoolCallOptions): Promise<MemoryInfo>;

  /** Ends the workers. Pending calls are rejected with `E_DISPOSED`. */
  dispose(): void;
}

/**
 * Starts workers that each hold an instance of the WebAssembly module, which is loaded and compiled once. Needs no
 * special headers. Where workers are forbidden or missing, the pool runs on the calling thread, and `pool.backend` says
 * why.
 *
 * @throws {MultiheadError} `E_OPTION`, `E_LOAD`, `E_ABORTED`
 */
export type CreatePool = (options?: PoolOptions) => Promise<Pool>;
