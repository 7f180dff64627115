// The workers of one model. They start together, get the same tasks in the same order, and end together: what lives in
// one of them is of no use without the others.

import { type Parts, remembered } from '../../load/loader.js';
import { type PartName, partNeeds } from '../../generated/parts.js';
import { receivedError, unsendable } from '../../pool/shared/errors.js';
import type { Port, StartWorker } from '../../pool/shared/port.js';
import { firstResult, giveUp, sharedBlockBytes, type TeamCall } from '../../pool/shared/team.js';
import { disposedError, MultiheadError } from '../../runtime/errors.js';
import type { Simd } from '../../types/index.js';
import type { Answer, Reply, Request, Task } from './protocol.js';

/** The module that every worker instantiates. */
export interface CompiledModule {
  readonly module: WebAssembly.Module;
  readonly simd: Simd;
  readonly compilePart: Parts['compile'];
}

interface Waiting {
  resolve(value: unknown): void;
  reject(error: MultiheadError): void;
}

interface Member {
  readonly port: Port<Request>;
  /** Calls without an answer, the oldest first. */
  readonly waiting: Waiting[];
}

const lostModel = (why: string): MultiheadError =>
  new MultiheadError('E_WORKER', {
    argument: 'model',
    expected: 'a model whose workers run',
    got: `one whose worker has ended (${why})`,
    message: `a worker of this model has ended (${why}), and the model is lost: open it again`,
  });

export class WorkerGroup {
  readonly #members: Member[] = [];
  #sharedBlock: SharedArrayBuffer | undefined;
  /** Called with false if the group ends while a worker starts. */
  readonly #starting: ((ready: boolean) => void)[] = [];
  #calls = 0;
  #generations = 0;
  #end: (() => MultiheadError) | undefined;
  #compilePart: Parts['compile'] | undefined;
  /** Links a part in every worker, once. Throws `E_LOAD`. */
  readonly load = remembered(async (part: PartName): Promise<void> => {
    const needed = partNeeds[part];
    const [module] = await Promise.all([this.#compilePart?.(part), needed && this.load(needed)]);
    if (module !== undefined) await this.send({ kind: 'link', module }, { apart: true });
  });

  /** Starts `count` workers. Resolves to false if a worker could not be started; all workers are ended then. */
  async start(startWorker: StartWorker, { module, simd, compilePart }: CompiledModule, count: number): Promise<boolean> {
    this.#compilePart = compilePart;
    if (count > 1) this.#sharedBlock = new SharedArrayBuffer(sharedBlockBytes);
    const start = (): Promise<boolean> =>
      new Promise((resolve) => {
        const waiting: Waiting[] = [];
        this.#starting.push(resolve);
        const port = startWorker<Request, Reply>({
          reply: (reply) => {
            if (reply.kind === 'ready' || reply.kind === 'broken') resolve(reply.kind === 'ready');
            else this.#answered(waiting, reply);
          },
          death: (why) => this.#finish(() => lostModel(why)),
        });
        if (port === undefined) return resolve(false);
        this.#members.push({ port, waiting });
        port.send({ kind: 'start', module, simd }, []);
      });
    try {
      const started = await Promise.all(Array.from({ length: count }, start));
      for (const { port } of this.#members) port.hold(false);
      if (started.every(Boolean)) return true;
    } catch (error) {
      this.dispose();
      // The environment's own error says that it has no workers.
      if (error instanceof MultiheadError) throw error;
    }
    this.dispose();
    return false;
  }

  get count(): number {
    return this.#members.length;
  }

  /** Throws `E_DISPOSED`, `E_WORKER`. */
  assertLive(): void {
    if (this.#end !== undefined) throw this.#end();
  }

  /** A number for a new generation. */
  newGeneration(): number {
    return (this.#generations += 1);
  }

  /** Sends a task to all workers. `apart`: they do not exchange results. Returns the first worker's value. */
  async send(task: Task, { apart = false, transfer = [] }: { apart?: boolean; transfer?: ArrayBuffer[] } = {}): Promise<unknown> {
    this.assertLive();
    const members = this.#members.length;
    const sharedBlock = this.#sharedBlock;
    const control = apart || sharedBlock === undefined ? undefined : new SharedArrayBuffer(4 * (members + 1));
    this.#hold(1);
    try {
      const sent = this.#members.map((member, rank) => {
        const team = control && sharedBlock && { rank, members, control, sharedBlock };
        return this.#give(member, task, team, transfer);
      });
      return await firstResult(sent);
    } finally {
      this.#hold(-1);
    }
  }

  /** Ends a generation in all workers. */
  release(id: number): void {
    if (this.#end !== undefined) return;
    for (const { port } of this.#members) port.send({ kind: 'release', id }, []);
  }

  /** Ends the workers, and rejects the calls that they run. */
  dispose(): void {
    this.#finish(() => disposedError('model', 'a model'));
  }

  #give({ port, waiting }: Member, task: Task, team: TeamCall | undefined, transfer: ArrayBuffer[]): Promise<unknown> {
    return new Promise((resolve, reject) => {
      try {
        port.send({ kind: 'task', task, team }, transfer);
        waiting.push({ resolve, reject });
      } catch (error) {
        // Members that got the task do not wait for this one.
        if (team !== undefined) giveUp(team);
        reject(unsendable(error));
      }
    });
  }

  #answered(waiting: Waiting[], answer: Answer): void {
    const call = waiting.shift();
    if (answer.kind === 'done') return call?.resolve(answer.value);
    call?.reject(receivedError(answer.error));
    if (answer.dead) this.#finish(() => lostModel(answer.error.message));
  }

  #finish(end: () => MultiheadError): void {
    if (this.#end !== undefined) return;
    this.#end = end;
    for (const { port, waiting } of this.#members) {
      port.end();
      for (const { reject } of waiting.splice(0)) reject(end());
    }
    for (const resolve of this.#starting.splice(0)) resolve(false);
  }

  /** Keeps a Node process alive while a call waits. */
  #hold(more: 1 | -1): void {
    const before = this.#calls;
    this.#calls += more;
    if (this.#end !== undefined || (before > 0 && this.#calls > 0)) return;
    for (const { port } of this.#members) port.hold(more === 1);
  }
}
