// The types of objects that live in a worker of a pool, and of what every call of a pool takes and gives.

import type { PlatformAbortSignal } from './platform_types.js';
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
  InitialiseOptions,
  KVCache,
  ModuleBackwardOptions,
  ModuleCacheConfig,
  ModuleInputs,
  ModuleResult,
  ModuleReturn,
  LoadStateDictOptions,
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
} from './types.js';

/** What each call of a pool may be given among its options. */
export interface PoolCallOptions {
  /**
   * Aborting rejects the call with `E_ABORTED` at once. A worker finishes the part that it is computing, whose result is
   * dropped, or is ended after the time of `abortGrace` of createPool(), which loses the objects in it; a call that no
   * worker has begun is not run. Default none.
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
   * `true` transfers the arrays of all operands, which must be `{ data, shape }`: their whole buffers are transferred, and
   * the arrays are detached when the call returns its promise. A call that one worker runs then copies nothing on this
   * thread; a divided call copies the parts. The operands come back in `lent` of the result, in new arrays over the same
   * memory. If the pool has shared memory, nothing is transferred, and `lent` holds the given arrays, so that the same
   * code works.
   *
   * A call that is refused because of its arguments transfers nothing, or has the operands in `error.lent`; so does a call
   * that is aborted or disposed while it waits. If a worker has begun the call, the operands are lost, and `error.lent` is
   * missing.
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

/** A result as it comes from a worker: a {@link Tensor} is { data, shape, dtype }, and nothing has to be disposed. */
export type Plain<T> =
  T extends Tensor<infer D>
    ? PlainTensor<D>
    : T extends ArrayBufferView | ((...args: never[]) => unknown)
      ? T
      : T extends object
        ? { [N in keyof T]: Plain<T[N]> }
        : T;

/** Options of a call of `mh`, without tensors of one instance, and with those of a pool. */
export type Pooled<O> = Omit<O, 'out'> & PoolCallOptions;

/** Options of modules, transformers and caches of a pool. */
export interface PoolObjectOptions {
  /**
   * How many workers share the work of each call: a projection is divided by its outputs, attention by its key/value
   * heads. Each worker holds the rows of the matrices for its outputs, a copy of small parameters, and the cached keys and
   * values of its heads; a cache with a single head, such as that of latent attention, is held by each worker. From the
   * first `backward()` or trainer on, each worker holds all parameters. Without shared memory, one worker is used. `'all'`
   * takes all workers of the pool. Default 1: calls of other objects can then run at the same time.
   */
  readonly workers?: number | 'all' | undefined;
  /** Aborting rejects the call with `E_ABORTED`. Default none. */
  readonly signal?: PlatformAbortSignal | undefined;
}

/** What all objects that live in a worker have. */
export interface PoolObject {
  /** Whether dispose() was called, or the pool was disposed. */
  readonly disposed: boolean;
  /** Frees the object in its worker. Its calls that are waiting are rejected with `E_DISPOSED`. */
  dispose(): void;
  /** As dispose(), for `using`. */
  [Symbol.dispose](): void;
}

/** A {@link KVCache} in a worker, or with some of its heads in each of several. */
export interface PoolKVCache
  extends
    PoolObject,
    Pick<KVCache, 'batch' | 'kvHeads' | 'headDim' | 'valueDim' | 'capacity' | 'layout' | 'dtype'> {
  /** As {@link KVCache.append}. */
  append(k: FloatTensorLike, v: FloatTensorLike, counts?: Int32Array, options?: PoolCallOptions): Promise<void>;
  /** As {@link KVCache.attend}. */
  attend<
    const R extends readonly AttentionReturn[] = [],
    const O extends FloatDType = 'f32',
    const C extends readonly Capture[] = [],
  >(
    q: FloatTensorLike,
    options?: Pooled<CacheAttendOptions<R, O, C>>,
  ): Promise<Plain<AttentionResult<R, O, C>>>;
  /** As {@link KVCache.truncate}. */
  truncate(batch: number, length: number, options?: PoolCallOptions): Promise<void>;
  /** As {@link KVCache.clear}. */
  clear(options?: PoolCallOptions): Promise<void>;
  /** As {@link KVCache.length}. */
  length(batch?: number, options?: PoolCallOptions): Promise<number>;
  /** As {@link KVCache.firstKept}. */
  firstKept(batch?: number, options?: PoolCallOptions): Promise<number>;
}

/** A {@link MultiHeadAttentionCache} in the workers of its layer. */
export interface PoolModuleCache
  extends PoolObject, Pick<MultiHeadAttentionCache, 'batch' | 'capacity' | 'layout' | 'dtype'> {
  /** As {@link MultiHeadAttentionCache.length}. */
  length(options?: PoolCallOptions): Promise<number>;
  /** As {@link MultiHeadAttentionCache.bytes}, of the part that the first of its workers has. */
  bytes(options?: PoolCallOptions): Promise<number>;
  /** As {@link MultiHeadAttentionCache.truncate}. */
  truncate(length: number, options?: PoolCallOptions): Promise<void>;
}

/** A {@link MultiHeadAttention} in a worker. */
export interface PoolMultiHeadAttention extends PoolObject, Pick<MultiHeadAttention, 'config'> {
  /** As {@link MultiHeadAttention.loadStateDict}. */
  loadStateDict(dict: StateDict, options?: PoolCallOptions): Promise<void>;
  /** As {@link MultiHeadAttention.stateDict}. */
  stateDict(options?: PoolCallOptions): Promise<Record<string, PlainTensor>>;
  /** As {@link MultiHeadAttention.forward}. */
  forward<const R extends readonly ModuleReturn[] = [], const T extends TraceOption = false>(
    query: TensorLike | ModuleInputs,
    options?: Pooled<ForwardOptions<R, T>>,
  ): Promise<Plain<ModuleResult<R, T>>>;
  /** As {@link MultiHeadAttention.backward}. */
  backward(
    query: TensorLike | ModuleInputs,
    dOut: TensorLike,
    options?: Pooled<ModuleBackwardOptions>,
  ): Promise<Plain<ReturnType<MultiHeadAttention['backward']>>>;
  /** As {@link MultiHeadAttention.createCache}. */
  createCache(config: ModuleCacheConfig, options?: PoolCallOptions): Promise<PoolModuleCache>;
  /** As {@link MultiHeadAttention.step}. */
  step<const R extends readonly ModuleReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    cache: PoolModuleCache,
    options?: Pooled<StepOptions<R, T>>,
  ): Promise<Plain<ModuleResult<R, T>>>;
}

/** A {@link TransformerBlock} in a worker. */
export interface PoolTransformerBlock extends PoolObject, Pick<TransformerBlock, 'config'> {
  /** As {@link TransformerBlock.loadStateDict}. */
  loadStateDict(dict: StateDict, options?: LoadStateDictOptions & PoolCallOptions): Promise<void>;
  /** As {@link TransformerBlock.stateDict}. */
  stateDict(options?: PoolCallOptions): Promise<Record<string, PlainTensor>>;
  /** As {@link TransformerBlock.forward}. */
  forward<const R extends readonly BlockReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    options?: Pooled<BlockOptions<R, T>>,
  ): Promise<Plain<BlockResult<R, T>>>;
  /** As {@link TransformerBlock.backward}. */
  backward(
    x: TensorLike,
    dOut: TensorLike,
    options?: Pooled<ModuleBackwardOptions>,
  ): Promise<Plain<ReturnType<TransformerBlock['backward']>>>;
  /** As {@link TransformerBlock.createCache}. */
  createCache(config: ModuleCacheConfig, options?: PoolCallOptions): Promise<PoolModuleCache>;
  /** As {@link TransformerBlock.step}. */
  step<const R extends readonly BlockReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    cache: PoolModuleCache,
    options?: Pooled<BlockStepOptions<R, T>>,
  ): Promise<Plain<BlockResult<R, T>>>;
}

/** A {@link Transformer} in a worker. */
export interface PoolTransformer extends PoolObject, Pick<Transformer, 'config'> {
  /** As {@link Transformer.loadStateDict}. */
  loadStateDict(dict: StateDict, options?: LoadStateDictOptions & PoolCallOptions): Promise<void>;
  /** As {@link Transformer.initialise}. */
  initialise(options?: InitialiseOptions & PoolCallOptions): Promise<void>;
  /** As {@link Transformer.stateDict}. */
  stateDict(options?: PoolCallOptions): Promise<Record<string, PlainTensor>>;
  /** As {@link Transformer.forward}. */
  forward<const R extends readonly TransformerReturn[] = ['logits'], const T extends TraceOption = false>(
    tokens: Int32Array,
    options?: Pooled<TransformerOptions<R, T>>,
  ): Promise<Plain<TransformerResult<R, T>>>;
  /** As {@link Transformer.createCache}. */
  createCache(config: ModuleCacheConfig, options?: PoolCallOptions): Promise<PoolModuleCache>;
  /** As {@link Transformer.step}. */
  step<const R extends readonly TransformerReturn[] = ['logits'], const T extends TraceOption = false>(
    tokens: Int32Array,
    cache: PoolModuleCache,
    options?: Pooled<TransformerStepOptions<R, T>>,
  ): Promise<Plain<TransformerResult<R, T>>>;
}

/** A {@link Trainer} in the worker of its model. */
export interface PoolTrainer extends PoolObject {
  /** As {@link Trainer.step}. */
  step(tokens: Int32Array, targets: Int32Array, options?: TrainerStepOptions & PoolCallOptions): Promise<TrainingStep>;
  /** As {@link Trainer.accumulate}. */
  accumulate(tokens: Int32Array, targets: Int32Array, options?: TrainerStepOptions & PoolCallOptions): Promise<void>;
  /** As {@link Trainer.update}. */
  update(options?: PoolCallOptions): Promise<TrainingStep>;
  /** As {@link Trainer.setLearningRate}. */
  setLearningRate(rate: number, options?: PoolCallOptions): Promise<void>;
  /** As {@link Trainer.gradients}. */
  gradients(options?: PoolCallOptions): Promise<Record<string, PlainTensor>>;
  /** Updates made so far. */
  steps(options?: PoolCallOptions): Promise<number>;
  /** As {@link Trainer.bytes}. */
  bytes(options?: PoolCallOptions): Promise<number>;
  /** As {@link Trainer.stateDict}. */
  stateDict(options?: PoolCallOptions): Promise<Record<string, PlainTensor>>;
  /** As {@link Trainer.loadStateDict}. */
  loadStateDict(dict: StateDict, options?: PoolCallOptions): Promise<void>;
  /** As {@link Trainer.checkpoint}. */
  checkpoint(options?: PoolCallOptions): Promise<ReturnType<Trainer['checkpoint']>>;
  /** As {@link Trainer.restore}. */
  restore(checkpoint: Uint8Array | ArrayBuffer, options?: PoolCallOptions): Promise<void>;
}

/** An {@link Experiment} in a worker. */
export interface PoolExperiment extends PoolObject, Pick<Experiment, 'options' | 'jobs' | 'patterns'> {
  /** As {@link Experiment.step}. */
  step(options?: PoolCallOptions): Promise<TrainingStep>;
  /** As {@link Experiment.evaluate}. */
  evaluate(options?: EvaluationOptions & PoolCallOptions): Promise<Evaluation>;
  /** As {@link Experiment.steps}. */
  steps(options?: PoolCallOptions): Promise<number>;
  /** As {@link Experiment.stateDict}. */
  stateDict(options?: PoolCallOptions): Promise<Record<string, PlainTensor>>;
  /** As {@link Experiment.checkpoint}. */
  checkpoint(options?: PoolCallOptions): Promise<ReturnType<Experiment['checkpoint']>>;
  /** As {@link Experiment.restore}. */
  restore(checkpoint: Uint8Array | ArrayBuffer, options?: PoolCallOptions): Promise<void>;
}
