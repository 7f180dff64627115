// The worker's side of a port, in browsers and Node.

interface Scope {
  postMessage(message: unknown, transfer: ArrayBuffer[]): void;
  addEventListener?(type: 'message' | 'messageerror', listener: (event: { data: unknown }) => void): void;
  on?(type: 'message' | 'messageerror', listener: (data: unknown) => void): void;
}
interface NodeProcess {
  getBuiltinModule?(name: 'node:worker_threads'): { parentPort: Scope | null };
}

/** Takes messages of type `Q` and sends messages of type `R`. */
export interface WorkerListener<Q, R> {
  receive(request: Q, send: (reply: R, transfer: ArrayBuffer[]) => void): void;
  /** The reply to a request that the engine could not deserialize, so that its call does not wait forever. */
  refuse(): R;
}

/** Connects this worker to the thread that has started it. */
export function listen<Q, R>({ receive, refuse }: WorkerListener<Q, R>): void {
  const { process, WorkerGlobalScope } = globalThis as { process?: NodeProcess; WorkerGlobalScope?: unknown };
  const nodePort = (): Scope | null | undefined => process?.getBuiltinModule?.('node:worker_threads').parentPort;
  // Deno has browser and Node workers; only browser workers have a WorkerGlobalScope.
  const port = (WorkerGlobalScope === undefined ? nodePort() : undefined) ?? (globalThis as unknown as Scope);
  const send = (reply: R, transfer: ArrayBuffer[]): void => port.postMessage(reply, transfer);
  const onMessage = (request: unknown): void => receive(request as Q, send);
  const onError = (): void => send(refuse(), []);
  if (port.on !== undefined) {
    port.on('message', onMessage);
    port.on('messageerror', onError);
  } else {
    port.addEventListener?.('message', ({ data }) => onMessage(data));
    port.addEventListener?.('messageerror', onError);
  }
}
