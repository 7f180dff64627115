// Connects the caller's thread to one worker: in a browser, or in Node.

import { pathOf } from '../../load/source.js';
import { optionError } from '../../runtime/errors.js';
import { describe } from '../../runtime/tensor.js';
import { nodeModule } from '../../runtime/text.js';

/** Callbacks for events of a worker that sends messages of type `R`. */
export interface PortEvents<R> {
  reply(reply: R): void;
  /** The worker ended, or never started. Called at most once, and not after end(). */
  death(why: string): void;
}

/** A connection to one worker that takes messages of type `Q`. */
export interface Port<Q> {
  send(request: Q, transfer: ArrayBuffer[]): void;
  end(): void;
  /** `busy` keeps the Node process alive until the worker is idle; no effect elsewhere. */
  hold(busy: boolean): void;
}

/**
 * Starts a worker; returns undefined if the environment has no workers. Throws the environment's error, or `E_OPTION`
 * if the caller's `worker` function returns no new worker.
 */
export type StartWorker = <Q, R>(events: PortEvents<R>) => Port<Q> | undefined;

export interface BrowserWorker {
  onmessage: ((event: { data: unknown }) => void) | null;
  onerror: ((event: { message?: string; preventDefault?(): void }) => void) | null;
  onmessageerror: (() => void) | null;
  postMessage(message: unknown, transfer: ArrayBuffer[]): void;
  terminate(): void;
}
export type BrowserWorkerClass = new (url: string | URL, options: { type: 'module' | 'classic' }) => BrowserWorker;

export interface NodeWorker {
  on(event: 'message', listener: (reply: unknown) => void): void;
  on(event: 'error' | 'messageerror', listener: (error: Error) => void): void;
  on(event: 'exit', listener: (code: number) => void): void;
  postMessage(message: unknown, transfer: ArrayBuffer[]): void;
  terminate(): Promise<number>;
  ref(): void;
  unref(): void;
}

const mostWorkers = 64;

/** The number of workers that an option asks for; `'all'` is one for each core. Throws `E_OPTION`. */
export function workerCount(workers: unknown): number {
  if (workers === 'all') return Math.min(cores(), mostWorkers);
  if (Number.isInteger(workers) && (workers as number) >= 1 && (workers as number) <= mostWorkers) {
    return workers as number;
  }
  throw optionError('workers', `"all" or a whole number from 1 to ${mostWorkers}`, describe(workers));
}

/** Number of hardware threads; 1 if unknown. */
function cores(): number {
  const { navigator } = globalThis as { navigator?: { hardwareConcurrency?: unknown } };
  const told = navigator?.hardwareConcurrency ?? nodeModule<{ availableParallelism?(): number }>('node:os')?.availableParallelism?.();
  return Number.isInteger(told) && (told as number) > 0 ? (told as number) : 1;
}

/** `missing`: the reason to report if a worker fails without a message. */
export function browserPort<Q, R>(worker: BrowserWorker, missing: string, { reply, death }: PortEvents<R>): Port<Q> {
  const end = (): void => {
    worker.onmessage = worker.onerror = worker.onmessageerror = null;
    worker.terminate();
  };
  const died = (why: string): void => {
    end();
    death(why);
  };
  worker.onmessage = ({ data }) => reply(data as R);
  worker.onerror = (event) => {
    event.preventDefault?.();
    died(event.message || missing);
  };
  worker.onmessageerror = () => died('a message could not be read');
  return {
    send: (request, transfer) => worker.postMessage(request, transfer),
    end,
    hold: () => {},
  };
}

export function nodePort<Q, R>(worker: NodeWorker, { reply, death }: PortEvents<R>): Port<Q> {
  let ended = false;
  const died = (why: string): void => {
    if (ended) return;
    ended = true;
    void worker.terminate();
    death(why);
  };
  worker.on('message', (message) => {
    if (!ended) reply(message as R);
  });
  worker.on('error', (error) => died(String(error)));
  worker.on('messageerror', (error) => died(String(error)));
  worker.on('exit', (code) => died(`it ended with code ${code}`));
  return {
    send: (request, transfer) => worker.postMessage(request, transfer),
    end: () => {
      ended = true;
      void worker.terminate();
    },
    hold: (busy) => (busy ? worker.ref() : worker.unref()),
  };
}

/** Starts workers with the caller's function. Throws `E_OPTION` for another value. */
export function madeBy(make: unknown): StartWorker {
  if (typeof make !== 'function') throw optionError('worker', 'a function that makes a Worker', describe(make));
  const made = new WeakSet<object>();
  return (events) => {
    const worker: unknown = make();
    const { postMessage, terminate, on } = Object(worker) as Partial<NodeWorker>;
    const isWorker = typeof postMessage === 'function' && typeof terminate === 'function';
    if (!isWorker || made.has(worker as object)) {
      const got = isWorker ? 'the same one again' : describe(worker);
      throw optionError('worker', 'a function that makes a new Worker each time', got);
    }
    made.add(worker as object);
    if (typeof on === 'function') return nodePort(worker as NodeWorker, events);
    return browserPort(worker as BrowserWorker, 'its script did not load, or a policy forbids it', events);
  };
}

/** `file` is an absolute path or a file: URL. */
export type WorkerScript = { readonly file: string } | { readonly text: string };

type NodeThreads = { readonly Worker: new (script: string | URL, options: { eval: boolean }) => NodeWorker };

/** The blob: address of the script text. All pools share it, because it is never revoked. */
let blob: string | undefined;

/** Starts a classic worker: pages on file: addresses cannot load modules. Deno has module workers alone. */
function blobWorker(Worker: BrowserWorkerClass, text: string): BrowserWorker {
  blob ??= URL.createObjectURL(new Blob([text], { type: 'text/javascript' }));
  try {
    return new Worker(blob, { type: 'classic' });
  } catch {
    return new Worker(blob, { type: 'module' });
  }
}

/** Starts workers whose script is a file or a string of JavaScript. */
export function workersOf(script: WorkerScript): StartWorker {
  return (events) => {
    const { Worker } = globalThis as { Worker?: BrowserWorkerClass };
    if (typeof Worker === 'function') {
      const missing = 'its script did not load: perhaps the Content-Security-Policy lacks worker-src blob:';
      return browserPort('file' in script ? new Worker(script.file, { type: 'module' }) : blobWorker(Worker, script.text), missing, events);
    }
    const threads = nodeModule<NodeThreads>('node:worker_threads');
    if (threads === undefined) return undefined;
    const worker = 'file' in script ? new threads.Worker(pathOf(script.file), { eval: false }) : new threads.Worker(script.text, { eval: true });
    return nodePort(worker, events);
  };
}
