// createPool(): the operations of `mh` on several threads. Nothing runs before its first call.

import { loadNames } from '../load/loader.js';
import { abortable, checkSignal } from '../runtime/abort.js';
import { optionError } from '../runtime/errors.js';
import { checkChoice, checkCount, type Names, plain, readOptions } from '../runtime/options.js';
import { describe, nameObject } from '../runtime/tensor.js';
import type { CreatePool, Pool, PoolBackend, PoolObjectOptions, PoolOptions } from '../types/pool.js';
import { handleOf, type Handle } from './arguments.js';
import { poolAttention } from './attention.js';
import { poolAttentionBackward } from './backward.js';
import { PoolCore } from './core.js';
import type { PoolPlatform } from './local.js';
import { poolScores } from './scores.js';
import { exchangeOf } from './shared/exchange.js';
import { madeBy, workerCount } from './shared/port.js';
import type { Maker } from './shared/protocol.js';
import { poolAttentionVarlen } from './varlen.js';
import { poolAttentionVarlenBackward } from './varlen_backward.js';
import type { Grace } from './workers.js';

const optionNames = {
  ...{ workers: plain, queue: plain, exchange: plain, leastWork: plain, abortGrace: plain, worker: plain },
  ...loadNames,
} satisfies Names<PoolOptions>;

/** Makes the createPool() of one entry point. */
export const poolCreator =
  (platform: PoolPlatform): CreatePool =>
  (given) =>
    createPool(platform, given);

async function createPool(platform: PoolPlatform, given: PoolOptions = {}): Promise<Pool> {
  const options = readOptions(given, optionNames, 'createPool');
  const { wasm, simd, integrity, onProgress, signal } = options;
  checkSignal(signal);
  const workers = workerCount(options.workers === undefined ? 'all' : options.workers);
  const queue = options.queue === undefined ? 1000 : checkCount(options.queue, 'queue');
  const wanted = checkChoice(options.exchange === undefined ? 'auto' : options.exchange, ['auto', 'messages'], 'exchange');
  const leastWork = checkWork(options.leastWork === undefined ? 4e6 : options.leastWork);
  const grace = graceOf(options.abortGrace);
  const { exchange, why: exchangeReason } = exchangeOf(wanted);

  const findWorkers = options.worker === undefined ? platform.findWorkers : () => madeBy(options.worker);
  const [mh, startWorker] = await Promise.all([platform.load({ wasm, simd, integrity, onProgress, signal }), findWorkers()]);
  const settings = { workers, queue, exchange, exchangeReason, leastWork, grace };
  const core = new PoolCore(mh, settings, { load: platform.load, startWorker });
  try {
    await abortable(core.workers.settled(), signal, 'createPool');
  } catch (error) {
    core.dispose();
    throw error;
  }
  return poolOf(core);
}

function checkWork(leastWork: unknown): number {
  if (typeof leastWork === 'number' && leastWork > 0) return leastWork;
  throw optionError('leastWork', 'a number above 0', describe(leastWork));
}

function graceOf(given: unknown): Grace {
  if (given === undefined) return { usual: 1000, withObjects: 10_000 };
  if (typeof given === 'number' && given >= 0) return { usual: given, withObjects: given };
  throw optionError('abortGrace', 'a number of milliseconds from 0 to Infinity', describe(given));
}

function backendOf({ workers: { count, localReason }, settings: { exchange, exchangeReason }, mh: { backend } }: PoolCore): PoolBackend {
  const { simd, version } = backend;
  if (localReason !== undefined) {
    const why = `no worker could be started, so calls run on the calling thread: ${localReason}`;
    return Object.freeze({ workers: 0, exchange: 'messages', simd, version, why } as const);
  }
  const why = `${count} ${count === 1 ? 'worker' : 'workers'}, ${exchange}: ${exchangeReason}`;
  return Object.freeze({ workers: count, exchange, simd, version, why });
}

function poolOf(core: PoolCore): Pool {
  const make =
    (maker: Maker) =>
    async (...args: unknown[]): Promise<unknown> => {
      const { handle, properties } = await core.make(maker, args);
      return proxyOf(core, handle, properties as object, maker);
    };
  const makeShared =
    (maker: Maker) =>
    async (config: unknown, given: PoolObjectOptions = {}): Promise<unknown> => {
      const { workers, ...call } = readOptions(given, { workers: plain, signal: plain }, maker);
      const count = workers === undefined ? 1 : workers === 'all' ? core.settings.workers : workerCount(workers);
      const { handle, properties } = await core.make(maker, [config, call], count);
      return proxyOf(core, handle, properties as object, maker);
    };
  const pool = {
    get backend() {
      return backendOf(core);
    },
    attention: (...args: [never, never, never, object?]) => poolAttention(core, ...args),
    attentionVarlen: (q: never, k: never, v: never, options: object) => poolAttentionVarlen(core, [q, k, v], options),
    scores: (q: never, k: never, options: object) => poolScores(core, q, k, options),
    attentionBackward: (...args: unknown[]) => poolAttentionBackward(core, ...args),
    attentionVarlenBackward: (...args: unknown[]) => poolAttentionVarlenBackward(core, ...args),
    latentAttention: (...args: unknown[]) => core.run('latentAttention', args),
    linear: (...args: unknown[]) => core.run('linear', args),
    rotate: (...args: unknown[]) => core.run('rotate', args),
    headStatistics: (...args: unknown[]) => core.run('headStatistics', args),
    memory: (...args: unknown[]) => core.run('memory', args),
    multiHeadAttention: makeShared('multiHeadAttention'),
    transformerBlock: makeShared('transformerBlock'),
    transformer: makeShared('transformer'),
    trainer: make('trainer'),
    experiment: make('experiment'),
    createCache: makeShared('createCache'),
    get disposed() {
      return core.disposed;
    },
    dispose: () => core.dispose(),
    [Symbol.dispose]: () => core.dispose(),
  };
  nameObject(pool, 'a pool');
  return Object.freeze(pool) as unknown as Pool;
}

const moduleMethods = ['loadStateDict', 'stateDict', 'forward', 'backward', 'step'];
const stateMethods = ['stateDict', 'loadStateDict', 'checkpoint', 'restore', 'steps', 'bytes'];
/**
 * Methods that the proxy of each kind of object forwards. `createCache` is also forwarded, but returns another proxy.
 */
const methods: Readonly<Record<Maker | 'moduleCache', readonly string[]>> = {
  multiHeadAttention: [...moduleMethods, 'createCache'],
  transformerBlock: [...moduleMethods, 'createCache'],
  transformer: ['loadStateDict', 'initialize', 'stateDict', 'forward', 'step', 'createCache'],
  trainer: [...stateMethods, 'step', 'accumulate', 'update', 'setLearningRate', 'gradients'],
  experiment: [...stateMethods, 'step', 'evaluate'],
  createCache: ['append', 'attend', 'truncate', 'clear', 'length', 'firstKept'],
  moduleCache: ['length', 'truncate'],
  scores: [],
};

function proxyOf(core: PoolCore, handle: Handle, properties: object, kind: keyof typeof methods): object {
  const names = methods[kind];
  const dispose = (): void => core.release(handle);
  const proxy: Record<PropertyKey, unknown> = {
    ...properties,
    get disposed() {
      return handle.disposed;
    },
    dispose,
    [Symbol.dispose]: dispose,
  };
  for (const name of names) {
    proxy[name] = (...args: unknown[]): Promise<unknown> => core.invoke(handle, name, args);
  }
  if (names.includes('createCache')) {
    proxy['createCache'] = async (...args: unknown[]): Promise<unknown> => {
      const { handle: cache, properties: cacheProperties } = await core.makeCache(handle, args);
      return proxyOf(core, cache, cacheProperties as object, 'moduleCache');
    };
  }
  handleOf.set(proxy, handle);
  nameObject(proxy, `an object of a pool (${kind === 'moduleCache' ? 'createCache' : kind})`);
  return Object.freeze(proxy);
}
