// The workers of a pool. Hands out tasks, replaces a worker that ended, and ends a worker that keeps running an aborted
// call.

import { MultiheadError } from '../runtime/errors.js';
import type { Simd } from '../types/index.js';
import { localPort, type Port, type Starting } from './port.js';
import { disposedPool, endedWorker, lostObject, receivedError, unsendable } from './shared/errors.js';
import type { Answer, Reply, Returned, Task } from './shared/protocol.js';
import { giveUp, type TeamCall } from './shared/team.js';

/** A task and the callbacks for its outcome. Exactly one of `done` and `failed` is called, once. */
export interface Work {
  readonly task: Task;
  readonly transfer: ArrayBuffer[];
  readonly team: TeamCall | undefined;
  /** Worker that holds the task's object; undefined if any worker may run the task. */
  readonly seat: Seat | undefined;
  /** Set by cancel(): the caller no longer waits for the result. */
  aborted: boolean;
  done(value: unknown, back: Returned): void;
  /** `back` is undefined if no worker answered. */
  failed(error: MultiheadError, back: Returned | undefined): void;
}

/** One worker and its queue, until that worker ends. */
export class Seat {
  port: Port | undefined;
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
 * After `mostFailures` workers in a row ended before they had started, the pool waits `patience` ms before each
 * attempt.
 */
const mostFailures = 8;
const patience = 1000;

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
const ofOneCall = (a: Work | undefined, b: Work): boolean =>
  a === b || (b.team !== undefined && a?.team?.control === b.team.control);

/** The module that every worker instantiates, and how a worker starts. */
export interface Instance extends Starting {
  readonly module: WebAssembly.Module;
  readonly simd: Simd;
}

export class Crew {
  readonly #instance: Instance;
  readonly #grace: Grace;
  #seats: Seat[] = [];
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

  get workers(): number {
    return this.#seats.length;
  }

  /** Resolves when no worker is starting any more. */
  async settled(): Promise<void> {
    while (!this.#disposed && this.#seats.some(({ state }) => state === 'starting')) {
      await new Promise<void>((resolve) => this.#starting.push(resolve));
    }
    if (this.#broken !== undefined) throw this.#broken;
  }

  /**
   * Picks up to `count` workers for a new object, fewest objects first. Workers that still run an aborted call come
   * last.
   */
  pick(count: number): Seat[] {
    if (this.#seats.length === 0) throw this.#broken ?? disposedPool();
    const inDoubt = ({ work }: Seat): number => Number(work?.aborted === true);
    return [...this.#seats].sort((a, b) => inDoubt(a) - inDoubt(b) || a.objects - b.objects).slice(0, count);
  }

  submit(work: Work): void {
    if (this.#disposed) return fail(work, disposedPool());
    if (this.#broken !== undefined) return fail(work, this.#broken);
    if (work.seat?.state === 'gone') return fail(work, lostObject(work.seat.end));
    (work.seat?.waiting ?? this.#queue).push(work);
    this.#pump();
  }

  /**
   * Takes back an aborted call that no worker has begun. Workers that have begun it get some time to finish. Team
   * members wait for each other, so if one member has begun, the others must run too.
   */
  cancel(work: Work): void {
    // This is called once for each member of a team; the first call does all.
    if (work.aborted) return;
    const isOther = (each: Work): boolean => !ofOneCall(each, work);
    const waiting = [...this.#queue, ...this.#seats.flatMap((seat) => seat.waiting)].filter((each) => ofOneCall(each, work));
    for (const each of [work, ...waiting, ...this.#begun(work).map((seat) => seat.work as Work)]) each.aborted = true;
    if (waiting.length === (work.team?.members ?? 1)) {
      this.#queue = this.#queue.filter(isOther);
      for (const seat of this.#seats) seat.waiting = seat.waiting.filter(isOther);
    }
    this.#limit(work);
  }

  /** The workers that compute a call at the moment. */
  #begun(call: Work): Seat[] {
    return this.#seats.filter(({ work }) => ofOneCall(work, call));
  }

  /**
   * Ends the workers that still run an aborted call after its grace period, which starts when all members have begun.
   */
  #limit(call: Work): void {
    const waits = (seat: Seat): boolean => seat.waiting.some((each) => ofOneCall(each, call));
    // A call on the calling thread cannot be ended.
    if (this.#localReason !== undefined || this.#begun(call).length === 0 || this.#seats.some(waits)) return;
    const { usual, withObjects } = this.#grace;
    const end = (delay: number): void => {
      for (const seat of this.#begun(call)) this.#ended(seat, `an aborted call still ran in it after ${delay} ms`);
    };
    later(usual, () => {
      if (withObjects === usual || this.#begun(call).every(({ objects }) => objects === 0)) end(usual);
      else later(withObjects - usual, () => end(withObjects));
    });
  }

  /** Frees an object in its worker. */
  release(seat: Seat, object: number): void {
    seat.objects -= 1;
    if (seat.state !== 'gone') seat.port?.send({ kind: 'release', object }, []);
  }

  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    const works = this.#queue;
    this.#queue = [];
    for (const seat of this.#seats) works.push(...this.#vacate(seat));
    this.#seats = [];
    for (const resolve of this.#starting.splice(0)) resolve();
    for (const work of works) fail(work, disposedPool());
  }

  /** Ends a worker, and returns its unfinished tasks. */
  #vacate(seat: Seat, why = ''): Work[] {
    seat.end = why;
    const works = seat.work === undefined ? seat.waiting : [seat.work, ...seat.waiting];
    seat.state = 'gone';
    seat.work = undefined;
    seat.waiting = [];
    seat.port?.end();
    return works;
  }

  #start(): void {
    const seat = new Seat();
    this.#seats.push(seat);
    const events = {
      reply: (reply: Reply) => this.#receive(seat, reply),
      death: (why: string) => this.#ended(seat, why),
    };
    const { module, simd, load, startWorker } = this.#instance;
    let why = 'there are no workers here';
    if (this.#localReason !== undefined) {
      seat.port = localPort(load, events);
    } else {
      try {
        seat.port = startWorker(events);
      } catch (error) {
        if (error instanceof MultiheadError) this.#broken = error;
        why = error instanceof Error ? error.message : String(error);
      }
      if (seat.port === undefined) return this.#ended(seat, why);
    }
    try {
      seat.port.send({ kind: 'start', module, simd }, []);
    } catch (error) {
      this.#ended(seat, String(error));
    }
  }

  #receive(seat: Seat, reply: Reply): void {
    if (seat.state === 'gone') return;
    if (reply.kind === 'broken') {
      if (this.#localReason !== undefined) this.#broken = receivedError(reply.error);
      return this.#ended(seat, reply.error.message);
    }
    if (reply.kind === 'ready') {
      this.#everReady = true;
      this.#failures = 0;
      seat.state = 'idle';
      seat.port?.hold(false);
      for (const resolve of this.#starting.splice(0)) resolve();
    } else {
      this.#answered(seat, reply);
    }
    this.#pump();
  }

  #answered(seat: Seat, answer: Answer): void {
    const work = seat.work;
    seat.work = undefined;
    seat.state = 'idle';
    seat.port?.hold(false);
    if (answer.kind === 'done') {
      work?.done(answer.value, answer.back);
    } else {
      if (answer.dead) this.#ended(seat, answer.error.message);
      if (work !== undefined) fail(work, receivedError(answer.error), answer.back);
    }
  }

  /** Called when a worker has ended: rejects its tasks, and starts another worker. */
  #ended(seat: Seat, why: string): void {
    if (seat.state === 'gone') return;
    const started = seat.state !== 'starting';
    const works = this.#vacate(seat, why);
    this.#seats = this.#seats.filter((each) => each !== seat);
    if (!started) this.#failures += 1;
    if (this.#broken !== undefined) {
      works.push(...this.#queue.splice(0));
    } else if (started || (this.#everReady && this.#failures < mostFailures)) {
      this.#start();
    } else if (this.#seats.length === 0) {
      this.#localReason = why;
      this.#start();
    } else if (this.#everReady) {
      this.#startLater();
    }
    for (const resolve of this.#starting.splice(0)) resolve();
    for (const work of works) {
      fail(work, this.#broken ?? (work.seat === undefined ? endedWorker(why) : lostObject(why)));
    }
    this.#pump();
  }

  #startLater(): void {
    later(patience, () => {
      if (!this.#disposed && this.#localReason === undefined) this.#start();
    });
  }

  #pump(): void {
    for (const seat of this.#seats) {
      while (seat.state === 'idle') {
        const work = seat.waiting.shift() ?? this.#queue.shift();
        if (work === undefined) break;
        this.#give(seat, work);
      }
    }
  }

  #give(seat: Seat, work: Work): void {
    try {
      seat.port?.hold(true);
      seat.port?.send({ kind: 'task', task: work.task, team: work.team }, work.transfer);
    } catch (error) {
      seat.port?.hold(false);
      fail(work, unsendable(error));
      return;
    }
    seat.work = work;
    seat.state = 'busy';
    if (work.aborted) this.#limit(work);
  }
}

/** Reports a failure, and tells the other team members not to wait for this one. */
function fail(work: Work, error: MultiheadError, back?: Returned): void {
  if (work.team !== undefined) giveUp(work.team);
  work.failed(error, back);
}
