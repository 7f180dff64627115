// The public types of multihead/pool.

import type { PlatformAbortSignal } from './platform_types.js';
import type {
  AttentionBackwardInputs,
  AttentionBackwardOptions,
  AttentionBackwardResult,
  AttentionOptions,
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
  ExperimentOptions,
  FloatDType,
  FloatTensorLike,
  ForwardOptions,
  GradientName,
  HeadStatistics,
  HeadStatisticsOptions,
  InitialiseOptions,
  KVCache,
  KVCacheConfig,
  LatentAttentionInputs,
  LatentAttentionOptions,
  LayerBackwardOptions,
  LayerCacheConfig,
  LayerInputs,
  LayerResult,
  LayerReturn,
  LinearOptions,
  LoadOptions,
  LoadStateDictOptions,
  MemoryInfo,
  MultiHeadAttention,
  MultiHeadAttentionCache,
  MultiHeadAttentionConfig,
  Multihead,
  PlainTensor,
  RopeRotation,
  ScoreRows,
  ScoresOptions,
  Simd,
  StateDict,
  StepOptions,
  Tensor,
  TensorLike,
  TraceOption,
  Trainer,
  TrainerOptions,
  TrainerStepOptions,
  TrainingStep,
  Transformer,
  TransformerBlock,
  TransformerBlockConfig,
  TransformerConfig,
  TransformerOptions,
  TransformerResult,
  TransformerReturn,
  TransformerStepOptions,
  VarlenBackwardOptions,
  VarlenBackwardResult,
  VarlenGradientName,
  VarlenOptions,
  VarlenResult,
} from './types.js';

/** Options of {@link createPool}. */
export interface PoolOptions extends LoadOptions {
  /**
   * How many workers: a whole number from 1 to 64, each with an instance of the WebAssembly module, or `'all'` for as
   * many as the machine has cores. Default `'all'`.
   */
  readonly workers?: number | 'all' | undefined;
  /** How many calls may wait or run at a time; one more is refused with `E_BUSY`. Default 1000. */
  readonly queue?: number | undefined;
  /**
   * `'messages'` does without shared memory where there is some. Default `'auto'`: shared memory in Node and on
   * cross-origin isolated pages, else messages.
   */
  readonly exchange?: 'auto' | 'messages' | undefined;
  /**
   * `attention` and `attentionVarlen` use one more worker for every so many multiplications and additions of a call: with
   * fewer, sending the operands takes longer than another worker saves. Default 4 000 000.
   */
  readonly leastWork?: number | undefined;
}

/** How a pool runs, at the moment. */
export interface PoolBackend {
  /** Workers that run; 0 if calls run on the calling thread. */
  readonly workers: number;
  /** How operands and results go to workers and back. Shared memory needs no transfer, and takes the caller's own. */
  readonly exchange: 'messages' | 'shared memory';
  /** The build that the workers loaded. */
  readonly simd: Simd;
  /** Version of the package. */
  readonly version: string;
  /** A sentence: "4 workers, messages: the page is not cross-origin isolated". */
  readonly why: string;
}

/** What each call of a pool may be given among its options. */
export interface PoolCallOptions {
  /**
   * Aborting rejects the call with `E_ABORTED` at once. What a worker is computing at the moment it still finishes, for
   * nobody. Default none.
   */
  readonly signal?: PlatformAbortSignal | undefined;
  /** Called when one more of the parts of a call is done. Only calls that are divided have several. Default none. */
  readonly progress?: ((done: number, total: number) => void) | undefined;
}

/** What calls may be given that can take their operands instead of copying them. */
export interface PoolLendingOptions<T extends boolean = boolean> {
  /**
   * `true` takes the arrays of all operands, which must be `{ data, shape }`: their buffers are transferred, with all that
   * lies in them, and the arrays are detached when the call returns its promise. A call that one worker runs copies
   * nothing on this thread then; one that is divided copies the parts. The operands come back in `lent` of the result, in
   * new arrays over the same memory. Where the pool has shared memory, nothing is transferred, and `lent` holds the arrays
   * themselves, so that the same code works.
   *
   * A call that is refused because of its arguments takes nothing, or has the operands in `error.lent`. So has one that is
   * aborted or disposed while it waits. If a worker is at it, they are lost: `error.lent` is missing.
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
type Pooled<O> = Omit<O, 'out'> & PoolCallOptions;

/** Options of modules and transformers of a pool. */
export interface PoolObjectOptions {
  /**
   * How many workers share the work of each call: every projection by its outputs, attention by its heads. Each has a
   * copy of all parameters and caches. More than one needs shared memory, and is one otherwise. `'all'` takes as many as
   * there are. Default 1: calls of other objects then run at the same time.
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

/** A {@link KVCache} in a worker. */
export interface PoolKVCache
  extends
    PoolObject,
    Pick<KVCache, 'batch' | 'kvHeads' | 'keyWidth' | 'valueWidth' | 'capacity' | 'layout' | 'dtype'> {
  /** As {@link KVCache.append}. */
  append(k: FloatTensorLike, v: FloatTensorLike, counts?: Int32Array): Promise<void>;
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
  truncate(batch: number, length: number): Promise<void>;
  /** As {@link KVCache.clear}. */
  clear(): Promise<void>;
  /** As {@link KVCache.length}. */
  length(batch?: number): Promise<number>;
  /** As {@link KVCache.firstKept}. */
  firstKept(batch?: number): Promise<number>;
}

/** A {@link MultiHeadAttentionCache} in the worker of its layer. */
export interface PoolLayerCache
  extends PoolObject, Pick<MultiHeadAttentionCache, 'batch' | 'capacity' | 'layout' | 'dtype'> {
  /** As {@link MultiHeadAttentionCache.length}. */
  length(): Promise<number>;
  /** As {@link MultiHeadAttentionCache.bytes}. */
  bytes(): Promise<number>;
  /** As {@link MultiHeadAttentionCache.rewind}. */
  rewind(length: number): Promise<void>;
}

/** A {@link MultiHeadAttention} in a worker. */
export interface PoolMultiHeadAttention extends PoolObject, Pick<MultiHeadAttention, 'config'> {
  /** As {@link MultiHeadAttention.loadStateDict}. */
  loadStateDict(dict: StateDict): Promise<void>;
  /** As {@link MultiHeadAttention.stateDict}. */
  stateDict(): Promise<Record<string, PlainTensor>>;
  /** As {@link MultiHeadAttention.forward}. */
  forward<const R extends readonly LayerReturn[] = [], const T extends TraceOption = false>(
    query: TensorLike | LayerInputs,
    options?: Pooled<ForwardOptions<R, T>>,
  ): Promise<Plain<LayerResult<R, T>>>;
  /** As {@link MultiHeadAttention.backward}. */
  backward(
    query: TensorLike | LayerInputs,
    dOut: TensorLike,
    options?: Pooled<LayerBackwardOptions>,
  ): Promise<Plain<ReturnType<MultiHeadAttention['backward']>>>;
  /** As {@link MultiHeadAttention.createCache}. */
  createCache(config: LayerCacheConfig): Promise<PoolLayerCache>;
  /** As {@link MultiHeadAttention.step}. */
  step<const R extends readonly LayerReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    cache: PoolLayerCache,
    options?: Pooled<StepOptions<R, T>>,
  ): Promise<Plain<LayerResult<R, T>>>;
}

/** A {@link TransformerBlock} in a worker. */
export interface PoolTransformerBlock extends PoolObject, Pick<TransformerBlock, 'config'> {
  /** As {@link TransformerBlock.loadStateDict}. */
  loadStateDict(dict: StateDict, options?: LoadStateDictOptions): Promise<void>;
  /** As {@link TransformerBlock.stateDict}. */
  stateDict(): Promise<Record<string, PlainTensor>>;
  /** As {@link TransformerBlock.forward}. */
  forward<const R extends readonly BlockReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    options?: Pooled<BlockOptions<R, T>>,
  ): Promise<Plain<BlockResult<R, T>>>;
  /** As {@link TransformerBlock.backward}. */
  backward(
    x: TensorLike,
    dOut: TensorLike,
    options?: Pooled<LayerBackwardOptions>,
  ): Promise<Plain<ReturnType<TransformerBlock['backward']>>>;
  /** As {@link TransformerBlock.createCache}. */
  createCache(config: LayerCacheConfig): Promise<PoolLayerCache>;
  /** As {@link TransformerBlock.step}. */
  step<const R extends readonly BlockReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    cache: PoolLayerCache,
    options?: Pooled<BlockStepOptions<R, T>>,
  ): Promise<Plain<BlockResult<R, T>>>;
}

/** A {@link Transformer} in a worker. */
export interface PoolTransformer extends PoolObject, Pick<Transformer, 'config'> {
  /** As {@link Transformer.loadStateDict}. */
  loadStateDict(dict: StateDict, options?: LoadStateDictOptions): Promise<void>;
  /** As {@link Transformer.initialise}. */
  initialise(options?: InitialiseOptions): Promise<void>;
  /** As {@link Transformer.stateDict}. */
  stateDict(): Promise<Record<string, PlainTensor>>;
  /** As {@link Transformer.forward}. */
  forward<const R extends readonly TransformerReturn[] = ['logits'], const T extends TraceOption = false>(
    tokens: Int32Array,
    options?: Pooled<TransformerOptions<R, T>>,
  ): Promise<Plain<TransformerResult<R, T>>>;
  /** As {@link Transformer.createCache}. */
  createCache(config: LayerCacheConfig): Promise<PoolLayerCache>;
  /** As {@link Transformer.step}. */
  step<const R extends readonly TransformerReturn[] = ['logits'], const T extends TraceOption = false>(
    tokens: Int32Array,
    cache: PoolLayerCache,
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
  update(): Promise<TrainingStep>;
  /** As {@link Trainer.setLearningRate}. */
  setLearningRate(rate: number): Promise<void>;
  /** As {@link Trainer.gradients}. */
  gradients(): Promise<Record<string, PlainTensor>>;
  /** Updates made so far. */
  steps(): Promise<number>;
  /** As {@link Trainer.bytes}. */
  bytes(): Promise<number>;
  /** As {@link Trainer.stateDict}. */
  stateDict(): Promise<Record<string, PlainTensor>>;
  /** As {@link Trainer.loadStateDict}. */
  loadStateDict(dict: StateDict): Promise<void>;
  /** As {@link Trainer.checkpoint}. */
  checkpoint(): Promise<ReturnType<Trainer['checkpoint']>>;
  /** As {@link Trainer.restore}. */
  restore(checkpoint: Uint8Array | ArrayBuffer): Promise<void>;
}

/** An {@link Experiment} in a worker. */
export interface PoolExperiment extends PoolObject, Pick<Experiment, 'options' | 'jobs' | 'patterns'> {
  /** As {@link Experiment.step}. */
  step(): Promise<TrainingStep>;
  /** As {@link Experiment.evaluate}. */
  evaluate(options?: EvaluationOptions): Promise<Evaluation>;
  /** As {@link Experiment.steps}. */
  steps(): Promise<number>;
  /** As {@link Experiment.stateDict}. */
  stateDict(): Promise<Record<string, PlainTensor>>;
  /** As {@link Experiment.checkpoint}. */
  checkpoint(): Promise<ReturnType<Experiment['checkpoint']>>;
  /** As {@link Experiment.restore}. */
  restore(checkpoint: Uint8Array | ArrayBuffer): Promise<void>;
}

/**
 * The operations of {@link Multihead} as promises, on several threads. Operands are plain { data, shape } or tensors of
 * any instance, and are copied before a call returns its promise; results are plain. Every result has the bits that one
 * thread gives, whatever the number of workers. All promises settle. They are
 * rejected with what the call of the same name throws, and with `E_ABORTED` by its `signal`, `E_WORKER` when its worker
 * ends, `E_BUSY` when too many calls wait, and `E_DISPOSED` when the pool or the object is disposed.
 */
export interface Pool {
  /** How the pool runs, at the moment. */
  readonly backend: PoolBackend;

  /**
   * {@link Multihead.attention}, divided among the workers by batch entries, heads and, where these are few, query rows.
   * With shared memory, operands and an `out` whose arrays lie in a `SharedArrayBuffer` are not copied by this thread;
   * do not change them before the promise settles.
   *
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`, `E_ABORTED`, `E_WORKER`, `E_BUSY`. `out` may
   * then have some of the rows.
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
    options?: Pooled<AttentionOptions<R, O, C>> & PoolLendingOptions<T> & { readonly out?: PlainTensor<O> | undefined },
  ): Promise<Plain<AttentionResult<R, O, C>> & Lent<T, 'q' | 'k' | 'v'>>;

  /** {@link Multihead.attentionVarlen}, divided by sequences, and long ones by heads and query rows. */
  attentionVarlen<
    const R extends readonly 'lse'[] = [],
    const O extends FloatDType = 'f32',
    const T extends boolean = false,
  >(
    q: FloatTensorLike,
    k: FloatTensorLike,
    v: FloatTensorLike,
    options: Pooled<VarlenOptions<R, O>> & PoolLendingOptions<T>,
  ): Promise<Plain<VarlenResult<R, O>> & Lent<T, 'q' | 'k' | 'v'>>;

  /** {@link Multihead.scores}: workers compute some chunks of rows ahead. Leaving the loop early frees their memory. */
  scores(
    q: FloatTensorLike,
    k: FloatTensorLike,
    options: ScoresOptions & PoolCallOptions,
  ): AsyncGenerator<ScoreRows, void, undefined>;

  /**
   * {@link Multihead.attentionBackward}, divided by batch entries and key/value heads. What a gradient is a sum over stays
   * in one worker: all batch entries for `dSinks`, all entries or heads that share a bias for its `dBias`, and the whole
   * call for `dQGain` and `dKGain`.
   */
  attentionBackward<
    const R extends readonly GradientName[] | undefined = undefined,
    const T extends boolean = false,
  >(
    inputs: AttentionBackwardInputs,
    options?: Pooled<AttentionBackwardOptions<R>> & PoolLendingOptions<T>,
  ): Promise<Plain<AttentionBackwardResult<R>> & Lent<T, keyof AttentionBackwardInputs>>;

  /**
   * {@link Multihead.attentionVarlenBackward}, divided by sequences, and long ones by key/value heads; with `dSinks` by
   * heads alone, unless there is dropout; with `dQGain` or `dKGain` in one worker.
   */
  attentionVarlenBackward<
    const R extends readonly VarlenGradientName[] | undefined = undefined,
    const T extends boolean = false,
  >(
    inputs: AttentionBackwardInputs,
    options: Pooled<VarlenBackwardOptions<R>> & PoolLendingOptions<T>,
  ): Promise<Plain<VarlenBackwardResult<R>> & Lent<T, keyof AttentionBackwardInputs>>;

  /** {@link Multihead.latentAttention} in one worker. */
  latentAttention<const R extends readonly ('lse' | 'weights')[] = []>(
    inputs: LatentAttentionInputs,
    options: Pooled<LatentAttentionOptions<R>>,
  ): Promise<Plain<AttentionResult<R>>>;

  /** {@link Multihead.linear} in one worker. */
  linear(x: TensorLike, weight: TensorLike, options?: Pooled<LinearOptions>): Promise<PlainTensor>;

  /** {@link Multihead.rotate} in one worker. */
  rotate(x: TensorLike, positions: Int32Array, rope: RopeRotation): Promise<PlainTensor>;

  /** {@link Multihead.headStatistics} in one worker. */
  headStatistics(weights: TensorLike, options?: HeadStatisticsOptions & PoolCallOptions): Promise<HeadStatistics>;

  /** Makes a module in one or several of the workers; modules are spread over them. Dispose it when it is not needed. */
  multiHeadAttention(config: MultiHeadAttentionConfig, options?: PoolObjectOptions): Promise<PoolMultiHeadAttention>;
  /** As {@link Pool.multiHeadAttention}. */
  transformerBlock(config: TransformerBlockConfig, options?: PoolObjectOptions): Promise<PoolTransformerBlock>;
  /** As {@link Pool.multiHeadAttention}. */
  transformer(config: TransformerConfig, options?: PoolObjectOptions): Promise<PoolTransformer>;
  /** Makes a trainer in the workers of its model. These share the forward passes of its steps. */
  trainer(model: PoolTransformer, options?: TrainerOptions): Promise<PoolTrainer>;
  /** As {@link Pool.multiHeadAttention}. */
  experiment(options?: ExperimentOptions): Promise<PoolExperiment>;
  /** Makes an empty cache of keys and values in one of the workers. */
  createCache(config: KVCacheConfig): Promise<PoolKVCache>;

  /** What is allocated in one of the workers at the moment. */
  memory(): Promise<MemoryInfo>;

  /** Whether dispose() was called. */
  readonly disposed: boolean;
  /** Ends the workers. Calls that are waiting or running are rejected with `E_DISPOSED`. */
  dispose(): void;
  /** As dispose(), for `using`. */
  [Symbol.dispose](): void;
}

/**
 * Starts workers that each hold an instance of the WebAssembly module, which is loaded and compiled once. Needs no
 * special headers. Where workers are forbidden or missing, the pool runs on the calling thread, and `pool.backend` says
 * why.
 *
 * @throws {MultiheadError} `E_OPTION`, `E_LOAD`, `E_ABORTED`
 */
export type CreatePool = (options?: PoolOptions) => Promise<Pool>;
