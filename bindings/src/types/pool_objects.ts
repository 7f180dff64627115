// The types of objects that live in a worker of a pool, and of what every call of a pool takes and gives.

import type { AttentionResult, AttentionReturn, BlockOptions, BlockResult, BlockReturn, BlockStepOptions, CacheAttendOptions } from './index.js';
import type { Capture, DisposableObject, Experiment, FloatDType, FloatTensorLike, ForwardOptions, KVCache, ModuleBackwardOptions } from './index.js';
import type { ModuleCacheConfig, ModuleInputs, ModuleResult, ModuleReturn, MultiHeadAttention, MultiHeadAttentionCache } from './index.js';
import type { ParameterModule, PlainTensor, StepOptions, Tensor, TensorLike, TraceOption, Trainer, Transformer, TransformerBlock } from './index.js';
import type { TransformerOptions, TransformerResult, TransformerReturn, TransformerStepOptions } from './index.js';
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
export interface PoolTransferOptions<T extends boolean = boolean> {
  /**
   * `true` transfers the arrays of all operands instead of copying them. Operands must be `{ data, shape }`: their
   * whole buffers are transferred, and the arrays are detached when the call returns its promise. If one worker runs
   * the call, this thread copies nothing; a divided call copies its parts. The result's `operands` holds the operands in
   * new arrays over the same memory. If the pool has shared memory, nothing is transferred, and `operands` holds the given
   * arrays, so that the same code works.
   *
   * If the arguments are invalid, either nothing is transferred or `error.operands` holds the operands. If the call is
   * aborted or disposed while it waits, `error.operands` holds them. If a worker has begun the call, the operands are lost,
   * and `error.operands` is missing. Default `false`.
   */
  readonly transfer?: T | undefined;
}

/** The operands of a call with `transfer: true`. */
export type TransferResult<T extends boolean, N extends string> = T extends true
  ? {
      /** The operands, by the names of their arguments. */
      readonly operands: { readonly [K in N]: PlainTensor<FloatDType> } & {
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

/**
 * Methods of an object that run in its worker: they take the pool's options as one more argument, and return promises of
 * plain results.
 */
export type PooledMethods<T, N extends keyof T> = {
  [K in N]: T[K] extends (...args: infer A) => infer R
    ? {
        /** Runs the object's method of this name in its worker. */
        (...args: [...A, options?: PoolCallOptions]): Promise<Plain<R>>;
      }
    : never;
};

/** Like {@link PooledMethods}, of methods whose last argument is an object of options: it also takes the pool's. */
export type PooledOptions<T, N extends keyof T> = {
  [K in N]: T[K] extends (...args: infer A) => infer R
    ? Required<A> extends [...infer Others, infer Options]
      ? {
          /** Runs the object's method of this name in its worker. */
          (...args: [...Others, options?: Options & PoolCallOptions]): Promise<Plain<R>>;
        }
      : never
    : never;
};

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
export interface PoolObject extends DisposableObject {
  /** Frees the object in its worker. Its waiting calls are rejected with `E_DISPOSED`. */
  dispose(): void;
}

/** Members of modules, transformer blocks and transformers in workers. */
export interface PoolParameterModule extends PoolObject, PooledMethods<ParameterModule, 'stateDict'> {
  /** Runs {@link ParameterModule.createCache} in the worker. */
  createCache(config: ModuleCacheConfig, options?: PoolCallOptions): Promise<PoolModuleCache>;
}

/** A {@link KVCache} in one worker, or divided by heads among several workers. */
export interface PoolKVCache
  extends
    PoolObject,
    Pick<KVCache, 'batch' | 'numKvHeads' | 'headDim' | 'valueDim' | 'capacity' | 'layout' | 'dtype'>,
    PooledMethods<KVCache, 'append' | 'truncate' | 'clear' | 'length' | 'firstKept'> {
  /** {@link KVCache.bytes} of the part that the first worker holds. */
  readonly bytes: number;
  /** Runs {@link KVCache.attend} in the worker. */
  attend<const R extends readonly AttentionReturn[] = [], const O extends FloatDType = 'f32', const C extends readonly Capture[] = []>(
    q: FloatTensorLike,
    options?: Pooled<CacheAttendOptions<R, O, C>>,
  ): Promise<Plain<AttentionResult<R, O, C>>>;
}

/** A {@link MultiHeadAttentionCache} in the workers of its layer. */
export interface PoolModuleCache
  extends
    PoolObject,
    Pick<MultiHeadAttentionCache, 'batch' | 'capacity' | 'layout' | 'dtype'>,
    PooledMethods<MultiHeadAttentionCache, 'length' | 'truncate'> {
  /** {@link MultiHeadAttentionCache.bytes} of the part that the first worker holds. */
  readonly bytes: number;
}

/** A {@link MultiHeadAttention} in a worker. */
export interface PoolMultiHeadAttention
  extends PoolParameterModule, Pick<MultiHeadAttention, 'config'>, PooledMethods<MultiHeadAttention, 'loadStateDict'> {
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
  /** Runs {@link MultiHeadAttention.step} in the worker. */
  step<const R extends readonly ModuleReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    cache: PoolModuleCache,
    options?: Pooled<StepOptions<R, T>>,
  ): Promise<Plain<ModuleResult<R, T>>>;
}

/** A {@link TransformerBlock} in a worker. */
export interface PoolTransformerBlock
  extends PoolParameterModule, Pick<TransformerBlock, 'config'>, PooledOptions<TransformerBlock, 'loadStateDict'> {
  /** Runs {@link TransformerBlock.forward} in the worker. */
  forward<const R extends readonly BlockReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    options?: Pooled<BlockOptions<R, T>>,
  ): Promise<Plain<BlockResult<R, T>>>;
  /** Runs {@link TransformerBlock.backward} in the worker. */
  backward(x: TensorLike, dOut: TensorLike, options?: Pooled<ModuleBackwardOptions>): Promise<Plain<ReturnType<TransformerBlock['backward']>>>;
  /** Runs {@link TransformerBlock.step} in the worker. */
  step<const R extends readonly BlockReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    cache: PoolModuleCache,
    options?: Pooled<BlockStepOptions<R, T>>,
  ): Promise<Plain<BlockResult<R, T>>>;
}

/** A {@link Transformer} in a worker. */
export interface PoolTransformer
  extends PoolParameterModule, Pick<Transformer, 'config'>, PooledOptions<Transformer, 'loadStateDict' | 'initialize'> {
  /** Runs {@link Transformer.forward} in the worker. */
  forward<const R extends readonly TransformerReturn[] = ['logits'], const T extends TraceOption = false>(
    tokens: Int32Array,
    options?: Pooled<TransformerOptions<R, T>>,
  ): Promise<Plain<TransformerResult<R, T>>>;
  /** Runs {@link Transformer.step} in the worker. */
  step<const R extends readonly TransformerReturn[] = ['logits'], const T extends TraceOption = false>(
    tokens: Int32Array,
    cache: PoolModuleCache,
    options?: Pooled<TransformerStepOptions<R, T>>,
  ): Promise<Plain<TransformerResult<R, T>>>;
}

/** A {@link Trainer} in the worker of its model. */
export interface PoolTrainer
  extends
    PoolObject,
    PooledOptions<Trainer, 'step' | 'accumulate'>,
    PooledMethods<Trainer, 'update' | 'setLearningRate' | 'gradients' | 'steps' | 'bytes'>,
    PooledMethods<Trainer, 'stateDict' | 'loadStateDict' | 'checkpoint' | 'restore'> {}

/** An {@link Experiment} in a worker. */
export interface PoolExperiment
  extends
    PoolObject,
    Pick<Experiment, 'options' | 'jobs' | 'patterns'>,
    PooledOptions<Experiment, 'evaluate'>,
    PooledMethods<Experiment, 'step' | 'steps' | 'bytes' | 'stateDict' | 'checkpoint' | 'restore'> {}
