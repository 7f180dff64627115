// The workers of a pool: hands out tasks, and replaces a worker that ends.

import type { MultiheadError } from './errors.js';
import { disposedPool, endedWorker, lostObject, receivedError, unsendable } from './pool_errors.js';
import { localPort, type Port, type Starting } from './pool_port.js';
import type { Answer, Reply, Returned, Task } from './pool_protocol.js';
import type { TeamCall } from './team.js';
import type { Simd } from './types.js';

/** A task and what becomes of it. One of the two functions is called, once. */
export interface Work {
  readonly task: Task;
  readonly transfer: ArrayBuffer[];
  readonly team: TeamCall | undefined;
  /** Where the object of the task lives; undefined for any worker. */
  readonly seat: Seat | undefined;
  done(value: unknown, back: Returned): void;
  /** Without buffers if no worker has answered. */
  failed(error: MultiheadError, back: Returned | undefined): void;
}

/** The place of one worker, until that worker ends. */
export class Seat {
  port: Port | undefined;
  state: 'starting' | 'idle' | 'busy' | 'gone' = 'starting';
  /** What the worker computes at the moment. */
  work: Work | undefined;
  /** Tasks of objects that live here. */
  waiting: Work[] = [];
  objects = 0;
}

/** Workers that ended one after the other before they had started: from then on the pool waits between attempts. */
const mostFailures = 8;
const patience = 1000;

/** What every worker has an instance of, and how a worker starts. */
export interface Instance extends Starting {
  readonly module: WebAssembly.Module;
  readonly simd: Simd;
}

export class Crew {
  readonly #instance: Instance;
  #seats: Seat[] = [];
  #queue: Work[] = [];
  #disposed = false;
  #everReady = false;
  #failures = 0;
  #localReason: string | undefined;
  #broken: MultiheadError | undefined;
  #starting: (() => void)[] = [];

  constructor(instance: Instance, count: number) {
    this.#instance = instance;
    for (let index = 0; index < count && this.#localReason === undefined; index += 1) this.#start();
  }

  /** Why tasks run on the calling thread; undefined where they do not. */
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

  /** The workers with the fewest objects, for one more; at most `count`, at least one. */
  pick(count: number): Seat[] {
    if (this.#seats.length === 0) throw this.#broken ?? disposedPool();
    return [...this.#seats].sort((a, b) => a.objects - b.objects).slice(0, count);
  }

  submit(work: Work): void {
    if (this.#disposed) return work.failed(disposedPool(), undefined);
    if (this.#broken !== undefined) return work.failed(this.#broken, undefined);
    if (work.seat?.state === 'gone') return work.failed(lostObject(), undefined);
    (work.seat?.waiting ?? this.#queue).push(work);
    this.#pump();
  }

  /** Takes back work that no worker has begun. */
  cancel(work: Work): void {
    const keep = (each: Work): boolean => each !== work;
    this.#queue = this.#queue.filter(keep);
    if (work.seat !== undefined) work.seat.waiting = work.seat.waiting.filter(keep);
  }

  /** Takes back a call of a team. Members wait for each other, so that none may be left out once one has begun. */
  cancelTeam({ control, members }: TeamCall): void {
    const isOther = ({ team }: Work): boolean => team?.control !== control;
    const waiting = this.#seats.filter((seat) => !seat.waiting.every(isOther));
    if (waiting.length < members) return;
    for (const seat of waiting) seat.waiting = seat.waiting.filter(isOther);
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
    for (const work of works) work.failed(disposedPool(), undefined);
  }

  /** Ends a worker, and gives the work that it leaves behind. */
  #vacate(seat: Seat): Work[] {
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
      work?.failed(receivedError(answer.error), answer.back);
    }
  }

  /** A worker has ended: reports the work that it took along, and starts another. */
  #ended(seat: Seat, why: string): void {
    if (seat.state === 'gone') return;
    const started = seat.state !== 'starting';
    const works = this.#vacate(seat);
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
    for (const work of works) work.failed(this.#broken ?? endedWorker(why), undefined);
    this.#pump();
  }

  #startLater(): void {
    const timer: unknown = setTimeout(() => {
      if (!this.#disposed && this.#localReason === undefined) this.#start();
    }, patience);
    // It keeps no Node process alive. Browsers have numbers for timers.
    if (typeof timer === 'object') (timer as { unref?(): void }).unref?.();
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
      work.failed(unsendable(error), undefined);
      return;
    }
    seat.work = work;
    seat.state = 'busy';
  }
}
