// The workers of a pool. Hands out tasks, replaces a worker that ended, and ends a worker that keeps running an aborted
// call.

import { MultiheadError } from '../runtime/errors.js';
import type { Simd } from '../types/index.js';
import { localPort, type Starting } from './local.js';
import { disposedPool, endedWorker, lostObject, receivedError, unsendable } from './shared/errors.js';
import type { Port } from './shared/port.js';
import type { Answer, Reply, Request, Returned, Task } from './shared/protocol.js';
import { giveUp, type TeamCall } from './shared/team.js';

/** A task and the callbacks for its outcome. Exactly one of `done` and `failed` is called, once. */
export interface Work {
  readonly task: Task;
  readonly transfer: ArrayBuffer[];
  readonly team: TeamCall | undefined;
  /** Worker that holds the task's object; undefined if any worker may run the task. */
  readonly worker: PoolWorker | undefined;
  /** Set by cancel(): the caller no longer waits for the result. */
  aborted: boolean;
  done(value: unknown, back: Returned): void;
  /** `back` is undefined if no worker answered. */
  failed(error: MultiheadError, back: Returned | undefined): void;
}

/** One worker and its queue, until that worker ends. */
export class PoolWorker {
  port: Port<Request> | undefined;
  state: 'starting' | 'idle' | 'busy' | 'gone' = 'starting';
  /** Task that the worker runs now. */
  work: Work | undefined;
  /** Tasks that need an object of this worker. */
  waiting: Work[] = [];
  objects = 0;
  /** Reason why the worker ended. */
  end = '';
}

/**
 * After `mostFailures` workers in a row ended before they had started, the pool waits `retryDelay` ms before each
 * attempt.
 */
const mostFailures = 8;
const retryDelay = 1000;

/** Milliseconds that a worker gets to finish an aborted call before it is ended. */
export interface Grace {
  readonly usual: number;
  /** Used for a worker that holds objects, because the objects are lost when it ends. */
  readonly withObjects: number;
}

/** The longest delay of a timer in milliseconds. A timer with a longer delay fires at once. */
const longestDelay = 2 ** 31 - 1;

function later(delay: number, run: () => void): void {
  if (delay > longestDelay) return;
  const timer: unknown = setTimeout(run, delay);
  // Lets a Node process exit while the timer runs. In browsers, timers are numbers.
  if (typeof timer === 'object') (timer as { unref?(): void }).unref?.();
}

/** True if both are the same task, or tasks of two team members in one call. */
const isSameCall = (a: Work | undefined, b: Work): boolean => a === b || (b.team !== undefined && a?.team?.control === b.team.control);

/** The module that every worker instantiates, and how a worker starts. */
export interface Instance extends Starting {
  readonly module: WebAssembly.Module;
  readonly simd: Simd;
}

export class Workers {
  readonly #instance: Instance;
  readonly #grace: Grace;
  #workers: PoolWorker[] = [];
  #queue: Work[] = [];
  #disposed = false;
  #everReady = false;
  #failures = 0;
  #localReason: string | undefined;
  #broken: MultiheadError | undefined;
  #starting: (() => void)[] = [];

  constructor(instance: Instance, count: number, grace: Grace) {
    this.#instance = instance;
    this.#grace = grace;
    const hasFailed = (): boolean => this.#localReason !== undefined || this.#broken !== undefined;
    for (let index = 0; index < count && !hasFailed(); index += 1) this.#start();
  }

  /** Reason why tasks run on the calling thread; undefined if workers run them. */
  get localReason(): string | undefined {
    return this.#localReason;
  }

  get disposed(): boolean {
    return this.#disposed;
  }

  get count(): number {
    return this.#workers.length;
  }

  /** Resolves when no worker is starting any more. */
  async settled(): Promise<void> {
    while (!this.#disposed && this.#workers.some(({ state }) => state === 'starting')) {
      await new Promise<void>((resolve) => this.#starting.push(resolve));
    }
    if (this.#broken !== undefined) throw this.#broken;
  }

  /**
   * Picks up to `count` workers for a new object, fewest objects first. Workers that still run an aborted call come
   * last.
   */
  pick(count: number): PoolWorker[] {
    if (this.#workers.length === 0) throw this.#broken ?? disposedPool();
    const inDoubt = ({ work }: PoolWorker): number => Number(work?.aborted === true);
    return [...this.#workers].sort((a, b) => inDoubt(a) - inDoubt(b) || a.objects - b.objects).slice(0, count);
  }

  submit(work: Work): void {
    if (this.#disposed) return fail(work, disposedPool());
    if (this.#broken !== undefined) return fail(work, this.#broken);
    if (work.worker?.state === 'gone') return fail(work, lostObject(work.worker.end));
    (work.worker?.waiting ?? this.#queue).push(work);
    this.#dispatch();
  }

  /**
   * Takes back an aborted call that no worker has begun. Workers that have begun it get some time to finish. Team
   * members wait for each other, so if one member has begun, the others must run too.
   */
  cancel(work: Work): void {
    // This is called once for each member of a team; the first call does all.
    if (work.aborted) return;
    const isOther = (each: Work): boolean => !isSameCall(each, work);
    const waiting = [...this.#queue, ...this.#workers.flatMap((worker) => worker.waiting)].filter((each) => isSameCall(each, work));
    for (const each of [work, ...waiting, ...this.#begun(work).map((worker) => worker.work as Work)]) each.aborted = true;
    if (waiting.length === (work.team?.members ?? 1)) {
      this.#queue = this.#queue.filter(isOther);
      for (const worker of this.#workers) worker.waiting = worker.waiting.filter(isOther);
    }
    this.#limit(work);
  }

  /** The workers that compute a call at the moment. */
  #begun(call: Work): PoolWorker[] {
    return this.#workers.filter(({ work }) => isSameCall(work, call));
  }

  /**
   * Ends the workers that still run an aborted call after its grace period, which starts when all members have begun.
   */
  #limit(call: Work): void {
    const waits = (worker: PoolWorker): boolean => worker.waiting.some((each) => isSameCall(each, call));
    // A call on the calling thread cannot be ended.
    if (this.#localReason !== undefined || this.#begun(call).length === 0 || this.#workers.some(waits)) return;
    const { usual, withObjects } = this.#grace;
    const end = (delay: number): void => {
      for (const worker of this.#begun(call)) this.#ended(worker, `an aborted call still ran in it after ${delay} ms`);
    };
    later(usual, () => {
      if (withObjects === usual || this.#begun(call).every(({ objects }) => objects === 0)) end(usual);
      else later(withObjects - usual, () => end(withObjects));
    });
  }

  /** Frees an object in its worker. */
  release(worker: PoolWorker, object: number): void {
    worker.objects -= 1;
    if (worker.state !== 'gone') worker.port?.send({ kind: 'release', id: object }, []);
  }

  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    const works = this.#queue;
    this.#queue = [];
    for (const worker of this.#workers) works.push(...this.#close(worker));
    this.#workers = [];
    for (const resolve of this.#starting.splice(0)) resolve();
    for (const work of works) fail(work, disposedPool());
  }

  /** Ends a worker, and returns its unfinished tasks. */
  #close(worker: PoolWorker, why = ''): Work[] {
    worker.end = why;
    const works = worker.work === undefined ? worker.waiting : [worker.work, ...worker.waiting];
    worker.state = 'gone';
    worker.work = undefined;
    worker.waiting = [];
    worker.port?.end();
    return works;
  }

  #start(): void {
    const worker = new PoolWorker();
    this.#workers.push(worker);
    const events = {
      reply: (reply: Reply) => this.#receive(worker, reply),
      death: (why: string) => this.#ended(worker, why),
    };
    const { module, simd, load, startWorker } = this.#instance;
    let why = 'there are no workers here';
    if (this.#localReason !== undefined) {
      worker.port = localPort(load, events);
    } else {
      try {
        worker.port = startWorker(events);
      } catch (error) {
        if (error instanceof MultiheadError) this.#broken = error;
        why = error instanceof Error ? error.message : String(error);
      }
      if (worker.port === undefined) return this.#ended(worker, why);
    }
    try {
      worker.port.send({ kind: 'start', module, simd }, []);
    } catch (error) {
      this.#ended(worker, String(error));
    }
  }

  #receive(worker: PoolWorker, reply: Reply): void {
    if (worker.state === 'gone') return;
    if (reply.kind === 'broken') {
      if (this.#localReason !== undefined) this.#broken = receivedError(reply.error);
      return this.#ended(worker, reply.error.message);
    }
    if (reply.kind === 'ready') {
      this.#everReady = true;
      this.#failures = 0;
      worker.state = 'idle';
      worker.port?.hold(false);
      for (const resolve of this.#starting.splice(0)) resolve();
    } else {
      this.#answered(worker, reply);
    }
    this.#dispatch();
  }

  #answered(worker: PoolWorker, answer: Answer): void {
    const work = worker.work;
    worker.work = undefined;
    worker.state = 'idle';
    worker.port?.hold(false);
    if (answer.kind === 'done') {
      work?.done(answer.value, answer.back);
    } else {
      if (answer.dead) this.#ended(worker, answer.error.message);
      if (work !== undefined) fail(work, receivedError(answer.error), answer.back);
    }
  }

  /** Called when a worker has ended: rejects its tasks, and starts another worker. */
  #ended(worker: PoolWorker, why: string): void {
    if (worker.state === 'gone') return;
    const started = worker.state !== 'starting';
    const works = this.#close(worker, why);
    this.#workers = this.#workers.filter((each) => each !== worker);
    if (!started) this.#failures += 1;
    if (this.#broken !== undefined) {
      works.push(...this.#queue.splice(0));
    } else if (started || (this.#everReady && this.#failures < mostFailures)) {
      this.#start();
    } else if (this.#workers.length === 0) {
      this.#localReason = why;
      this.#start();
    } else if (this.#everReady) {
      this.#startLater();
    }
    for (const resolve of this.#starting.splice(0)) resolve();
    for (const work of works) {
      fail(work, this.#broken ?? (work.worker === undefined ? endedWorker(why) : lostObject(why)));
    }
    this.#dispatch();
  }

  #startLater(): void {
    later(retryDelay, () => {
      if (!this.#disposed && this.#localReason === undefined) this.#start();
    });
  }

  #dispatch(): void {
    for (const worker of this.#workers) {
      while (worker.state === 'idle') {
        const work = worker.waiting.shift() ?? this.#queue.shift();
        if (work === undefined) break;
        this.#give(worker, work);
      }
    }
  }

  #give(worker: PoolWorker, work: Work): void {
    try {
      worker.port?.hold(true);
      worker.port?.send({ kind: 'task', task: work.task, team: work.team }, work.transfer);
    } catch (error) {
      worker.port?.hold(false);
      fail(work, unsendable(error));
      return;
    }
    worker.work = work;
    worker.state = 'busy';
    if (work.aborted) this.#limit(work);
  }
}

/** Reports a failure, and tells the other team members not to wait for this one. */
function fail(work: Work, error: MultiheadError, back?: Returned): void {
  if (work.team !== undefined) giveUp(work.team);
  work.failed(error, back);
}
