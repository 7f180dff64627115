// The types of objects that live in a worker of a pool, and of what every call of a pool takes and gives.

import type {
  AttentionResult,
  AttentionReturn,
  BlockOptions,
  BlockResult,
  BlockReturn,
  BlockStepOptions,
  CacheAttendOptions,
  Capture,
  Evaluation,
  EvaluationOptions,
  Experiment,
  FloatDType,
  FloatTensorLike,
  ForwardOptions,
  InitializeOptions,
  KVCache,
  LoadStateDictOptions,
  ModuleBackwardOptions,
  ModuleCacheConfig,
  ModuleInputs,
  ModuleResult,
  ModuleReturn,
  MultiHeadAttention,
  MultiHeadAttentionCache,
  PlainTensor,
  StateDict,
  StepOptions,
  Tensor,
  TensorLike,
  TraceOption,
  Trainer,
  TrainerStepOptions,
  TrainingStep,
  Transformer,
  TransformerBlock,
  TransformerOptions,
  TransformerResult,
  TransformerReturn,
  TransformerStepOptions,
} from './index.js';
import type { PlatformAbortSignal } from './platform.js';

/** Options that every call of a pool accepts. */
export interface PoolCallOptions {
  /**
   * Aborting rejects the call with `E_ABORTED` at once. A call that no worker has begun does not run. A worker that has
   * begun finishes its part, and the result is dropped; after `abortGrace` (see createPool()) the worker is ended, and
   * its objects are lost. Default none.
   */
  readonly signal?: PlatformAbortSignal | undefined;
  /**
   * Called after each part of a call is done. Only calls that are divided have several parts. If it throws, the call is
   * rejected with that error. Default none.
   */
  readonly progress?: ((done: number, total: number) => void) | undefined;
}

/** Options of calls that can transfer their operands instead of copying them. */
export interface PoolLendingOptions<T extends boolean = boolean> {
  /**
   * `true` transfers the arrays of all operands instead of copying them. Operands must be `{ data, shape }`: their
   * whole buffers are transferred, and the arrays are detached when the call returns its promise. If one worker runs
   * the call, this thread copies nothing; a divided call copies its parts. The result's `lent` holds the operands in
   * new arrays over the same memory. If the pool has shared memory, nothing is transferred, and `lent` holds the given
   * arrays, so that the same code works.
   *
   * If the arguments are invalid, either nothing is transferred or `error.lent` holds the operands. If the call is
   * aborted or disposed while it waits, `error.lent` holds them. If a worker has begun the call, the operands are lost,
   * and `error.lent` is missing. Default `false`.
   */
  readonly transfer?: T | undefined;
}

/** The operands of a call with `transfer: true`. */
export type Lent<T extends boolean, N extends string> = T extends true
  ? {
      /** The operands, by the names of their arguments. */
      readonly lent: { readonly [K in N]: PlainTensor<FloatDType> } & {
        /** If the call had one. */
        readonly mask?: PlainTensor<'bool'>;
        /** If the call had one. */
        readonly bias?: PlainTensor;
      };
    }
  : unknown;

/** A result in the form that a worker sends: each {@link Tensor} is { data, shape, dtype }, and needs no dispose(). */
export type Plain<T> =
  T extends Tensor<infer D>
    ? PlainTensor<D>
    : T extends ArrayBufferView | ((...args: never[]) => unknown)
      ? T
      : T extends readonly unknown[]
        ? { [N in keyof T]: Plain<T[N]> }
        : T extends object
          ? { [N in keyof T as Exclude<N, typeof Symbol.dispose>]: Plain<T[N]> }
          : T;

/** Options of a call of `mh` without `out`, plus the pool's options. */
export type Pooled<O> = Omit<O, 'out'> & PoolCallOptions;

/** Options of modules, transformers and caches of a pool. */
export interface PoolObjectOptions {
  /**
   * Number of workers that share each call: a projection is divided by its outputs, attention by its key/value heads.
   * Each worker holds the rows of the matrices for its outputs, a copy of small parameters, and the cached keys and
   * values of its heads; a cache with a single head, for example of latent attention, is held by each worker. From the
   * first `backward()` or trainer on, each worker holds all parameters. Without shared memory, one worker is used.
   * `'all'` takes all workers of the pool. Default 1: calls of other objects can then run at the same time.
   */
  readonly workers?: number | 'all' | undefined;
  /** Aborting rejects the call with `E_ABORTED`. Default none. */
  readonly signal?: PlatformAbortSignal | undefined;
}

/** Members of every object that lives in a worker. */
export interface PoolObject {
  /** True once dispose() was called on the object or on the pool. */
  readonly disposed: boolean;
  /** Frees the object in its worker. Its waiting calls are rejected with `E_DISPOSED`. */
  dispose(): void;
  /** Calls dispose(), for `using`. */
  [Symbol.dispose](): void;
}

/** A {@link KVCache} in one worker, or divided by heads among several workers. */
export interface PoolKVCache
  extends
    PoolObject,
    Pick<KVCache, 'batch' | 'numKvHeads' | 'headDim' | 'valueDim' | 'capacity' | 'layout' | 'dtype'> {
  /** Runs {@link KVCache.append} in the worker. */
  append(k: FloatTensorLike, v: FloatTensorLike, counts?: Int32Array, options?: PoolCallOptions): Promise<void>;
  /** Runs {@link KVCache.attend} in the worker. */
  attend<
    const R extends readonly AttentionReturn[] = [],
    const O extends FloatDType = 'f32',
    const C extends readonly Capture[] = [],
  >(
    q: FloatTensorLike,
    options?: Pooled<CacheAttendOptions<R, O, C>>,
  ): Promise<Plain<AttentionResult<R, O, C>>>;
  /** Runs {@link KVCache.truncate} in the worker. */
  truncate(batch: number, length: number, options?: PoolCallOptions): Promise<void>;
  /** Runs {@link KVCache.clear} in the worker. */
  clear(options?: PoolCallOptions): Promise<void>;
  /** Runs {@link KVCache.length} in the worker. */
  length(batch?: number, options?: PoolCallOptions): Promise<number>;
  /** Runs {@link KVCache.firstKept} in the worker. */
  firstKept(batch?: number, options?: PoolCallOptions): Promise<number>;
}

/** A {@link MultiHeadAttentionCache} in the workers of its layer. */
export interface PoolModuleCache
  extends PoolObject, Pick<MultiHeadAttentionCache, 'batch' | 'capacity' | 'layout' | 'dtype'> {
  /** Runs {@link MultiHeadAttentionCache.length} in the worker. */
  length(options?: PoolCallOptions): Promise<number>;
  /** Returns {@link MultiHeadAttentionCache.bytes} of the part that the first worker holds. */
  bytes(options?: PoolCallOptions): Promise<number>;
  /** Runs {@link MultiHeadAttentionCache.truncate} in the worker. */
  truncate(length: number, options?: PoolCallOptions): Promise<void>;
}

/** A {@link MultiHeadAttention} in a worker. */
export interface PoolMultiHeadAttention extends PoolObject, Pick<MultiHeadAttention, 'config'> {
  /** Runs {@link MultiHeadAttention.loadStateDict} in the worker. */
  loadStateDict(dict: StateDict, options?: PoolCallOptions): Promise<void>;
  /** Runs {@link MultiHeadAttention.stateDict} in the worker. */
  stateDict(options?: PoolCallOptions): Promise<Record<string, PlainTensor>>;
  /** Runs {@link MultiHeadAttention.forward} in the worker. */
  forward<const R extends readonly ModuleReturn[] = [], const T extends TraceOption = false>(
    query: TensorLike | ModuleInputs,
    options?: Pooled<ForwardOptions<R, T>>,
  ): Promise<Plain<ModuleResult<R, T>>>;
  /** Runs {@link MultiHeadAttention.backward} in the worker. */
  backward(
    query: TensorLike | ModuleInputs,
    dOut: TensorLike,
    options?: Pooled<ModuleBackwardOptions>,
  ): Promise<Plain<ReturnType<MultiHeadAttention['backward']>>>;
  /** Runs {@link MultiHeadAttention.createCache} in the worker. */
  createCache(config: ModuleCacheConfig, options?: PoolCallOptions): Promise<PoolModuleCache>;
  /** Runs {@link MultiHeadAttention.step} in the worker. */
  step<const R extends readonly ModuleReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    cache: PoolModuleCache,
    options?: Pooled<StepOptions<R, T>>,
  ): Promise<Plain<ModuleResult<R, T>>>;
}

/** A {@link TransformerBlock} in a worker. */
export interface PoolTransformerBlock extends PoolObject, Pick<TransformerBlock, 'config'> {
  /** Runs {@link TransformerBlock.loadStateDict} in the worker. */
  loadStateDict(dict: StateDict, options?: LoadStateDictOptions & PoolCallOptions): Promise<void>;
  /** Runs {@link TransformerBlock.stateDict} in the worker. */
  stateDict(options?: PoolCallOptions): Promise<Record<string, PlainTensor>>;
  /** Runs {@link TransformerBlock.forward} in the worker. */
  forward<const R extends readonly BlockReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    options?: Pooled<BlockOptions<R, T>>,
  ): Promise<Plain<BlockResult<R, T>>>;
  /** Runs {@link TransformerBlock.backward} in the worker. */
  backward(
    x: TensorLike,
    dOut: TensorLike,
    options?: Pooled<ModuleBackwardOptions>,
  ): Promise<Plain<ReturnType<TransformerBlock['backward']>>>;
  /** Runs {@link TransformerBlock.createCache} in the worker. */
  createCache(config: ModuleCacheConfig, options?: PoolCallOptions): Promise<PoolModuleCache>;
  /** Runs {@link TransformerBlock.step} in the worker. */
  step<const R extends readonly BlockReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    cache: PoolModuleCache,
    options?: Pooled<BlockStepOptions<R, T>>,
  ): Promise<Plain<BlockResult<R, T>>>;
}

/** A {@link Transformer} in a worker. */
export interface PoolTransformer extends PoolObject, Pick<Transformer, 'config'> {
  /** Runs {@link Transformer.loadStateDict} in the worker. */
  loadStateDict(dict: StateDict, options?: LoadStateDictOptions & PoolCallOptions): Promise<void>;
  /** Runs {@link Transformer.initialize} in the worker. */
  initialize(options?: InitializeOptions & PoolCallOptions): Promise<void>;
  /** Runs {@link Transformer.stateDict} in the worker. */
  stateDict(options?: PoolCallOptions): Promise<Record<string, PlainTensor>>;
  /** Runs {@link Transformer.forward} in the worker. */
  forward<const R extends readonly TransformerReturn[] = ['logits'], const T extends TraceOption = false>(
    tokens: Int32Array,
    options?: Pooled<TransformerOptions<R, T>>,
  ): Promise<Plain<TransformerResult<R, T>>>;
  /** Runs {@link Transformer.createCache} in the worker. */
  createCache(config: ModuleCacheConfig, options?: PoolCallOptions): Promise<PoolModuleCache>;
  /** Runs {@link Transformer.step} in the worker. */
  step<const R extends readonly TransformerReturn[] = ['logits'], const T extends TraceOption = false>(
    tokens: Int32Array,
    cache: PoolModuleCache,
    options?: Pooled<TransformerStepOptions<R, T>>,
  ): Promise<Plain<TransformerResult<R, T>>>;
}

/** A {@link Trainer} in the worker of its model. */
export interface PoolTrainer extends PoolObject {
  /** Runs {@link Trainer.step} in the worker. */
  step(tokens: Int32Array, targets: Int32Array, options?: TrainerStepOptions & PoolCallOptions): Promise<TrainingStep>;
  /** Runs {@link Trainer.accumulate} in the worker. */
  accumulate(tokens: Int32Array, targets: Int32Array, options?: TrainerStepOptions & PoolCallOptions): Promise<void>;
  /** Runs {@link Trainer.update} in the worker. */
  update(options?: PoolCallOptions): Promise<TrainingStep>;
  /** Runs {@link Trainer.setLearningRate} in the worker. */
  setLearningRate(rate: number, options?: PoolCallOptions): Promise<void>;
  /** Runs {@link Trainer.gradients} in the worker. */
  gradients(options?: PoolCallOptions): Promise<Record<string, PlainTensor>>;
  /** Updates made so far. */
  steps(options?: PoolCallOptions): Promise<number>;
  /** Runs {@link Trainer.bytes} in the worker. */
  bytes(options?: PoolCallOptions): Promise<number>;
  /** Runs {@link Trainer.stateDict} in the worker. */
  stateDict(options?: PoolCallOptions): Promise<Record<string, PlainTensor>>;
  /** Runs {@link Trainer.loadStateDict} in the worker. */
  loadStateDict(dict: StateDict, options?: PoolCallOptions): Promise<void>;
  /** Runs {@link Trainer.checkpoint} in the worker. */
  checkpoint(options?: PoolCallOptions): Promise<ReturnType<Trainer['checkpoint']>>;
  /** Runs {@link Trainer.restore} in the worker. */
  restore(checkpoint: Uint8Array | ArrayBuffer, options?: PoolCallOptions): Promise<void>;
}

/** An {@link Experiment} in a worker. */
export interface PoolExperiment extends PoolObject, Pick<Experiment, 'options' | 'jobs' | 'patterns'> {
  /** Runs {@link Experiment.step} in the worker. */
  step(options?: PoolCallOptions): Promise<TrainingStep>;
  /** Runs {@link Experiment.evaluate} in the worker. */
  evaluate(options?: EvaluationOptions & PoolCallOptions): Promise<Evaluation>;
  /** Runs {@link Experiment.steps} in the worker. */
  steps(options?: PoolCallOptions): Promise<number>;
  /** Runs {@link Experiment.stateDict} in the worker. */
  stateDict(options?: PoolCallOptions): Promise<Record<string, PlainTensor>>;
  /** Runs {@link Experiment.checkpoint} in the worker. */
  checkpoint(options?: PoolCallOptions): Promise<ReturnType<Experiment['checkpoint']>>;
  /** Runs {@link Experiment.restore} in the worker. */
  restore(checkpoint: Uint8Array | ArrayBuffer, options?: PoolCallOptions): Promise<void>;
}
