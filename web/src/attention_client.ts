// The page's connection to the worker. One request runs at a time; only the latest one's answer is used.

import type { Answer, ForwardInput, ForwardResult, Request } from './messages.js';

export interface AttentionClient {
  /** Requests a forward pass, which replaces a request that has not started yet. */
  request(input: ForwardInput): void;
  /** Ignores the answers of all requests so far. */
  cancel(): void;
}

export interface Listener {
  onResult(result: ForwardResult): void;
  /** A request failed, or the worker did not start; the page shows `message`. */
  onFailure(message: string): void;
}

/** The part of Worker that the client uses. */
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
