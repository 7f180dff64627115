// The page's side of the worker: one request at a time, and only the latest answer counts.

import type { Answer, ForwardInput, ForwardResult, Request } from './messages.js';

export interface AttentionClient {
  /** Replaces any request that is still waiting. */
  request(input: ForwardInput): void;
  /** No answer is wanted any more. */
  cancel(): void;
}

export interface Listener {
  onResult(result: ForwardResult): void;
  /** The computation cannot go on; `message` is for people. */
  onFailure(message: string): void;
}

/** What the client needs of a Worker. */
export interface Port {
  postMessage(request: Request): void;
  onmessage: ((event: MessageEvent<Answer>) => void) | null;
  onerror: ((event: ErrorEvent) => void) | null;
}

export function connect(port: Port, listener: Listener): AttentionClient {
  let lastId = 0;
  let running: number | undefined;
  let waiting: Request | undefined;

  function send(request: Request): void {
    running = request.id;
    port.postMessage(request);
  }

  port.onmessage = ({ data: answer }) => {
    if (answer.id === running) running = undefined;
    if (waiting) {
      send(waiting);
      waiting = undefined;
    }
    if (answer.id !== lastId) return;
    if (answer.kind === 'result') listener.onResult(answer.result);
    else listener.onFailure(answer.message);
  };

  port.onerror = (event) => {
    running = undefined;
    waiting = undefined;
    listener.onFailure(event.message || 'its worker script could not be loaded');
  };

  return {
    request(input) {
      lastId += 1;
      const request = { id: lastId, ...input };
      if (running === undefined) send(request);
      else waiting = request;
    },
    cancel() {
      lastId += 1;
      waiting = undefined;
    },
  };
}

export function startWorker(): Port {
  return new Worker(new URL('./worker.ts', import.meta.url), { type: 'module', name: 'attention' });
}
