// The worker's side of a port, in browsers and Node.

import { type Contents, createLoader } from '../../load/loader.js';
import { nodeModule } from '../../runtime/text.js';
import type { Simd } from '../../types/index.js';
import { sentError } from './errors.js';
import type { SentError, WorkerReply, WorkerRequest } from './protocol.js';
import type { TeamCall } from './team.js';

interface Scope {
  postMessage(message: unknown, transfer: ArrayBuffer[]): void;
  addEventListener?(type: 'message' | 'messageerror', listener: (event: { data: unknown }) => void): void;
  on?(type: 'message' | 'messageerror', listener: (data: unknown) => void): void;
}

/** Runs the tasks of a worker, of type `T`, with its WebAssembly instance. */
export interface Runner<T, A> {
  run(task: T, team: TeamCall | undefined): { message: A; transfer: ArrayBuffer[] };
  release(id: number): void;
}

/** Answers messages: loads the module that comes first, and runs tasks with the runner that `create` makes. */
export function answering<Api, T, A>(
  load: (options: { wasm: WebAssembly.Module; simd: Simd }) => Promise<Api>,
  create: (api: Api) => Runner<T, A>,
  send: (reply: WorkerReply<A>, transfer: ArrayBuffer[]) => void,
): (request: WorkerRequest<T>) => Promise<void> {
  let runner: Runner<T, A> | undefined;
  const start = async (wasm: WebAssembly.Module, simd: Simd): Promise<WorkerReply<A>> => {
    try {
      runner = create(await load({ wasm, simd }));
      return { kind: 'ready' };
    } catch (error) {
      return { kind: 'broken', error: sentError(error) };
    }
  };
  return async (request) => {
    if (request.kind === 'start') return send(await start(request.module, request.simd), []);
    if (request.kind === 'release') return runner?.release(request.id);
    // Tasks come only after it was said that this side is ready.
    const { message, transfer } = (runner as Runner<T, A>).run(request.task, request.team);
    send(message, transfer);
  };
}

/**
 * Connects this worker to the thread that has started it: loads the module that it sends, and runs its tasks with the
 * runner that `create` makes. `unread` is the answer to a task that the engine could not deserialize, so that its call does
 * not wait forever.
 */
export function serve<Api extends object, T, A>(contents: Contents<Api>, create: (api: Api) => Runner<T, A>, unread: (error: SentError) => A): void {
  const load = createLoader<Api>(() => {
    throw new Error('the thread that starts a worker sends it the module');
  }, contents);
  // Deno has browser and Node workers; only browser workers have a WorkerGlobalScope.
  const { WorkerGlobalScope } = globalThis as { WorkerGlobalScope?: unknown };
  const threads = WorkerGlobalScope === undefined ? nodeModule<{ parentPort: Scope | null }>('node:worker_threads') : undefined;
  const port = threads?.parentPort ?? (globalThis as unknown as Scope);
  const send = (reply: WorkerReply<A>, transfer: ArrayBuffer[] = []): void => port.postMessage(reply, transfer);
  let isReady = false;
  const created = (api: Api): Runner<T, A> => {
    isReady = true;
    return create(api);
  };
  const answer = answering<Api, T, A>(load, created, send);
  const onMessage = (data: unknown): void => void answer(data as WorkerRequest<T>);
  const onError = (): void => {
    const error = sentError(new Error('the message with the call could not be read'));
    send(isReady ? unread(error) : { kind: 'broken', error });
  };
  if (port.on !== undefined) {
    port.on('message', onMessage);
    port.on('messageerror', onError);
  } else {
    port.addEventListener?.('message', (event) => onMessage(event.data));
    port.addEventListener?.('messageerror', onError);
  }
}
