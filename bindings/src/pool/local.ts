// Runs a pool's tasks on the calling thread, where no worker can be started; and how a pool starts its workers.

import type { Load } from '../types/index.js';
import { sentError } from './shared/errors.js';
import type { Port, PortEvents, StartWorker } from './shared/port.js';
import type { Reply, Request } from './shared/protocol.js';
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
  const handle = async (request: Request): Promise<void> => {
    if (ended) return;
    if (request.kind === 'start') {
      try {
        runner = new TaskRunner(await load({ wasm: request.module, simd: request.simd }));
        reply({ kind: 'ready' });
      } catch (error) {
        reply({ kind: 'broken', error: sentError(error) });
      }
    } else if (request.kind === 'release') {
      runner?.release(request.id);
    } else {
      const { message } = (runner as TaskRunner).run(request.task, request.team);
      reply(message);
    }
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
