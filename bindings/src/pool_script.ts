// Starts workers whose script is a file or a string of JavaScript.

import { browserPort, nodePort, type BrowserWorkerClass, type NodeWorker, type StartWorker } from './pool_port.js';
import { pathOf } from './source.js';

/** `file` is an absolute path or a file: URL. */
export type WorkerScript = { readonly file: string } | { readonly text: string };

interface Globals {
  readonly Worker?: BrowserWorkerClass;
  readonly process?: {
    getBuiltinModule?(name: 'node:worker_threads'): {
      Worker: new (script: string | URL, options: { eval: boolean }) => NodeWorker;
    };
  };
}

/** The blob: address of the script text. All pools share it, because it is never revoked. */
let blob: string | undefined;

export function workersOf(script: WorkerScript): StartWorker {
  return (events) => {
    const { Worker, process } = globalThis as Globals;
    if (typeof Worker === 'function') {
      let address: string;
      if ('file' in script) address = script.file;
      else address = blob ??= URL.createObjectURL(new Blob([script.text], { type: 'text/javascript' }));
      const missing = 'its script did not load: perhaps the Content-Security-Policy lacks worker-src blob:';
      return browserPort(new Worker(address, { type: 'module' }), missing, events);
    }
    const threads = process?.getBuiltinModule?.('node:worker_threads');
    if (threads === undefined) return undefined;
    const worker =
      'file' in script
        ? new threads.Worker(pathOf(script.file), { eval: false })
        : new threads.Worker(script.text, { eval: true });
    return nodePort(worker, events);
  };
}
