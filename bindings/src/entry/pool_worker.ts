// The script of a pool's workers, in browsers and Node; only a pool starts it. build.mjs bundles it with all its
// imports into one file, which works as a module and as a classic script.

import { everything } from '../api/multihead.js';
import { createLoader } from '../load/loader.js';
import { sentError } from '../pool/shared/errors.js';
import type { Reply, Request } from '../pool/shared/protocol.js';
import { TaskRunner } from '../pool/worker/tasks.js';

interface Scope {
  postMessage(message: Reply, transfer: ArrayBuffer[]): void;
  addEventListener?(type: 'message' | 'messageerror', listener: (event: { data: Request }) => void): void;
  on?(type: 'message' | 'messageerror', listener: (data: Request) => void): void;
}
interface NodeProcess {
  getBuiltinModule?(name: 'node:worker_threads'): { parentPort: Scope | null };
}

const { process, WorkerGlobalScope } = globalThis as { process?: NodeProcess; WorkerGlobalScope?: unknown };
const nodePort = (): Scope | null | undefined => process?.getBuiltinModule?.('node:worker_threads').parentPort;
// Deno has browser and Node workers; only browser workers have a WorkerGlobalScope.
const port = (WorkerGlobalScope === undefined ? nodePort() : undefined) ?? (globalThis as unknown as Scope);
const load = createLoader(() => {
  throw new Error('a pool sends the module to its workers');
}, everything);
let runner: TaskRunner | undefined;

async function start({ module, simd }: Extract<Request, { kind: 'start' }>): Promise<Reply> {
  try {
    runner = new TaskRunner(await load({ wasm: module, simd }));
    return { kind: 'ready' };
  } catch (error) {
    return { kind: 'broken', error: sentError(error) };
  }
}

function receive(request: Request): void {
  if (request.kind === 'start') {
    void start(request).then((reply) => port.postMessage(reply, []));
  } else if (request.kind === 'release') {
    runner?.release(request.object);
  } else {
    // The pool sends tasks only after this worker has reported that it is ready.
    const { message, transfer } = (runner as TaskRunner).run(request.task, request.team);
    port.postMessage(message, transfer);
  }
}

/** Answers a request that the engine could not deserialize, so that its call does not wait forever. */
function refuse(): void {
  const error = sentError(new Error('the message with the call could not be read'));
  const back = { taskBuffer: undefined, transferred: [] };
  port.postMessage(runner === undefined ? { kind: 'broken', error } : { kind: 'failed', error, dead: false, back }, []);
}

if (port.on !== undefined) {
  port.on('message', receive);
  port.on('messageerror', refuse);
} else {
  port.addEventListener?.('message', ({ data }) => receive(data));
  port.addEventListener?.('messageerror', refuse);
}
