// State that all calls of one pool share: workers, buffers and the queue bound. The pool, its calls and its proxies
// reference the state; when all of these are garbage, the workers end.

import { runtimeOf } from '../api/multihead.js';
import { moduleOf } from '../load/loader.js';
import { abortedError } from '../runtime/abort.js';
import { MultiheadError } from '../runtime/errors.js';
import type { Runtime } from '../runtime/operands.js';
import type { Load, Multihead } from '../types/index.js';
import { type CallOptions, Handle, handleOf, packArguments, splitOptions } from './arguments.js';
import { BufferPool } from './buffers.js';
import type { Starting } from './local.js';
import { disposedObject, disposedPool, lostObject, objectsApart } from './shared/errors.js';
import type { Exchange } from './shared/exchange.js';
import type { Maker, ObjectTask, Task, Verb } from './shared/protocol.js';
import { firstResult, sharedBlockBytes, type TeamCall } from './shared/team.js';
import type { TransferredOperands } from './transfer.js';
import { type Grace, type PoolWorker, type Work, Workers } from './workers.js';

/** A task and its destination. */
interface Sent {
  readonly task: Task;
  readonly transfer: ArrayBuffer[];
  /** The operands whose buffers the task transfers. */
  readonly transferred?: TransferredOperands | undefined;
  readonly worker?: PoolWorker | undefined;
  readonly team?: TeamCall | undefined;
}

/** A new object, and its constant properties. */
export interface Made {
  readonly handle: Handle;
  readonly properties: unknown;
}

export interface PoolSettings {
  readonly workers: number;
  readonly queue: number;
  readonly exchange: Exchange;
  readonly exchangeReason: string;
  /** Multiplications and additions that justify one more worker. */
  readonly leastWork: number;
  readonly grace: Grace;
}

/** Disposes what nobody references any more: the workers of a pool, or an object in them. */
const abandoned = typeof FinalizationRegistry === 'function' ? new FinalizationRegistry<{ dispose(): void }>((held) => held.dispose()) : undefined;
const objectIn = (all: Workers, workers: readonly PoolWorker[], id: number) => ({
  dispose: () => workers.forEach((worker) => all.release(worker, id)),
});

/** Functions to run when a signal is aborted. Each signal gets one listener: Node warns about more than ten. */
const reactions = new WeakMap<AbortSignal, Set<() => void>>();

/** Runs `react` when the signal is aborted. The returned function cancels that. */
function whenAborted(signal: AbortSignal | undefined, react: () => void): () => void {
  if (signal === undefined) return () => {};
  let reacting = reactions.get(signal);
  if (reacting === undefined) {
    const all = (reacting = new Set<() => void>());
    signal.addEventListener('abort', () => all.forEach((each) => each()), { once: true });
    reactions.set(signal, all);
  }
  reacting.add(react);
  return () => reacting.delete(react);
}

export class PoolCore {
  readonly settings: PoolSettings;
  readonly workers: Workers;
  readonly buffers: BufferPool;
  readonly #load: Load;
  #mh: Multihead;
  #calls = 0;
  #objects = 0;
  #disposed = false;

  /** `mh` checks and divides calls on this thread; the workers have instances of the same WebAssembly module. */
  constructor(mh: Multihead, settings: PoolSettings, start: Starting) {
    this.settings = settings;
    this.#load = start.load;
    this.#mh = mh;
    const { workers, exchange, grace } = settings;
    const instance = { module: moduleOf.get(mh) as WebAssembly.Module, simd: mh.backend.simd, ...start };
    this.workers = new Workers(instance, workers, grace);
    this.buffers = new BufferPool(exchange, 4 * workers);
    abandoned?.register(this, this.workers, this);
  }

  get mh(): Multihead {
    return this.#mh;
  }

  get disposed(): boolean {
    return this.#disposed;
  }

  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    abandoned?.unregister(this);
    this.workers.dispose();
  }

  /** Runs a call if fewer than `queue` calls are pending. Throws `E_DISPOSED`, `E_BUSY`, `E_ABORTED`. */
  async call<R>(name: string, { signal }: CallOptions, body: () => Promise<R>): Promise<R> {
    if (this.#disposed) throw disposedPool();
    if (signal?.aborted) throw abortedError(signal, name);
    const { queue } = this.settings;
    if (this.#calls >= queue) {
      throw new MultiheadError('E_BUSY', {
        argument: 'pool',
        expected: `at most ${queue} calls at a time`,
        got: 'one more',
        message: `${name}: ${queue} calls wait in the pool already; await some of them, or set queue of createPool()`,
      });
    }
    this.#calls += 1;
    try {
      return await body();
    } finally {
      this.#calls -= 1;
    }
  }

  /**
   * Returns this thread's instance, which checks calls, or a promise of a new instance if the old one has trapped.
   * Callers await only a promise, so that operands are copied before the call returns.
   */
  planner(): Runtime | Promise<Runtime> {
    const runtime = runtimeOf.get(this.#mh) as Runtime;
    return runtime.raw.dead ? this.#newPlanner() : runtime;
  }

  async #newPlanner(): Promise<Runtime> {
    const wasm = moduleOf.get(this.#mh) as WebAssembly.Module;
    this.#mh = await this.#load({ wasm, simd: this.#mh.backend.simd });
    return runtimeOf.get(this.#mh) as Runtime;
  }

  /** Sends a task. The promise settles even if its worker dies or the pool is disposed. */
  send(
    name: string,
    { task, transfer, transferred, worker, team }: Sent,
    signal: AbortSignal | undefined,
  ): Promise<{ value: unknown; taskBuffer: ArrayBufferLike | undefined }> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(abortedError(signal, name));
      const settled = whenAborted(signal, () => {
        this.workers.cancel(work);
        reject(abortedError(signal as AbortSignal, name));
      });
      const work: Work = {
        ...{ task, transfer: [...transfer, ...(transferred?.buffers ?? [])], worker, team, aborted: false },
        done: (value, back) => {
          settled();
          transferred?.returned(back.transferred);
          if (signal?.aborted) this.buffers.give(back.taskBuffer);
          resolve({ value, taskBuffer: back.taskBuffer });
        },
        failed: (error, back) => {
          settled();
          if (back !== undefined) transferred?.returned(back.transferred);
          this.buffers.give(back?.taskBuffer);
          reject(error);
        },
      };
      this.workers.submit(work);
    });
  }

  /**
   * Sends a task to every worker of an object. All workers get the tasks in one order. Returns the first worker's
   * result.
   */
  async #sendToAll(
    name: string,
    { workers, sharedBlock }: Handle,
    task: ObjectTask,
    transfer: ArrayBuffer[],
    signal: AbortSignal | undefined,
  ): Promise<unknown> {
    const members = workers.length;
    if (sharedBlock === undefined) return (await this.send(name, { task, transfer, worker: workers[0] }, signal)).value;
    const gone = workers.find(({ state }) => state === 'gone');
    if (gone !== undefined) throw lostObject(gone.end);
    const control = new SharedArrayBuffer(4 * (members + 1));
    const sent = workers.map((worker, rank) => this.send(name, { task, transfer, worker, team: { rank, members, control, sharedBlock } }, signal));
    return (await firstResult(sent)).value;
  }

  /** Runs a call whose arguments end with the pool's options, if there are any. An error that is thrown at once is a rejection, too. */
  async #split<R>(name: string, given: readonly unknown[], body: (args: readonly unknown[], options: CallOptions) => Promise<R>): Promise<R> {
    const { args, options } = splitOptions(given);
    return this.call(name, options, () => body(args, options));
  }

  /** Runs an operation of `mh` in one worker. */
  run(verb: Verb, given: readonly unknown[]): Promise<unknown> {
    return this.#split(verb, given, async (args, { signal }) => {
      const packed = packArguments(args);
      const task = { kind: 'run', verb, args: packed.args } as const;
      return (await this.send(verb, { ...packed, task }, signal)).value;
    });
  }

  /**
   * Makes an object in the workers of the objects among its arguments, or else in the `count` workers with the fewest
   * objects.
   */
  make(maker: Maker, given: readonly unknown[], count = 1): Promise<Made> {
    return this.#split(maker, given, (args, options) => {
      const workers = this.workers.pick(this.settings.exchange === 'shared memory' ? count : 1);
      const { args: sent, transfer, placement } = packArguments(args, { several: workers.length > 1 });
      if (placement !== undefined && placement.all !== this.workers) throw objectsApart();
      const sharedBlock = workers.length > 1 ? new SharedArrayBuffer(sharedBlockBytes) : undefined;
      const handle = this.#handle(placement?.workers ?? workers, placement === undefined ? sharedBlock : placement.sharedBlock);
      const task = { kind: 'make', id: handle.id, maker, args: sent } as const;
      return this.#made(maker, handle, task, transfer, options);
    });
  }

  /** Makes a cache of a module or transformer in the workers of that object. */
  makeCache(of: Handle, given: readonly unknown[]): Promise<Made> {
    return this.#split('createCache', given, (args, options) => {
      if (of.disposed) throw disposedObject();
      const { args: sent, transfer } = packArguments(args, { several: of.workers.length > 1 });
      const handle = this.#handle(of.workers, of.sharedBlock);
      const task = { kind: 'makeCache', id: handle.id, object: of.id, args: sent } as const;
      return this.#made('createCache', handle, task, transfer, options);
    });
  }

  #handle(workers: readonly PoolWorker[], sharedBlock: SharedArrayBuffer | undefined): Handle {
    const handle = new Handle(this.workers, workers, (this.#objects += 1), sharedBlock);
    for (const worker of workers) worker.objects += 1;
    // Registered before the object exists, so that it is freed even if the call that makes it is aborted.
    abandoned?.register(handle, objectIn(this.workers, workers, handle.id), handle);
    return handle;
  }

  async #made(name: string, handle: Handle, task: ObjectTask, transfer: ArrayBuffer[], { signal }: CallOptions): Promise<Made> {
    try {
      return { handle, properties: await this.#sendToAll(name, handle, task, transfer, signal) };
    } catch (error) {
      this.release(handle);
      throw error;
    }
  }

  release(handle: Handle): void {
    if (handle.released) return;
    handle.released = true;
    abandoned?.unregister(handle);
    for (const worker of handle.workers) this.workers.release(worker, handle.id);
  }

  /** Calls a method of an object, or reads a property. Errors name the call. */
  invoke(handle: Handle, method: string, given: readonly unknown[], name = method): Promise<unknown> {
    return this.#split(name, given, (args, { signal }) => {
      const packed = packArguments([proxyOf(handle), ...args]);
      const task = { kind: 'call', object: handle.id, method, args: packed.args.slice(1) } as const;
      return this.#sendToAll(name, handle, task, packed.transfer, signal);
    });
  }
}

/** A proxy without methods that represents the handle's object among the arguments. */
function proxyOf(handle: Handle): object {
  const proxy = {};
  handleOf.set(proxy, handle);
  return proxy;
}
