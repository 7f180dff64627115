// Runs a pool's tasks on the calling thread, where no worker can be started; and how a pool starts its workers.

import type { Load, Multihead } from '../types/index.js';
import type { Port, PortEvents, StartWorker } from './shared/port.js';
import type { Answer, Reply, Request, Task } from './shared/protocol.js';
import { answering } from './shared/scope.js';
import { TaskRunner } from './worker/tasks.js';

/** Functions that start a worker, or load an instance on the calling thread. */
export interface Starting {
  readonly load: Load;
  readonly startWorker: StartWorker;
}

/** Functions that differ between the entry points with createPool(). */
export interface PoolPlatform {
  readonly load: Load;
  findWorkers(): StartWorker | Promise<StartWorker>;
}

/** Runs tasks on the calling thread instead of a worker, each in its own turn of the event loop. */
export function localPort(load: Load, { reply, death }: PortEvents<Reply>): Port<Request> {
  let runner: TaskRunner | undefined;
  let ended = false;
  const answer = answering<Multihead, Task, Answer>(load, (mh) => (runner = new TaskRunner(mh)), reply);
  const handle = async (request: Request): Promise<void> => {
    if (!ended) await answer(request);
  };
  return {
    send: (request) => {
      setTimeout(() => handle(request).catch((error: unknown) => death(String(error))), 0);
    },
    end: () => {
      ended = true;
      runner?.end();
    },
    hold: () => {},
  };
}
