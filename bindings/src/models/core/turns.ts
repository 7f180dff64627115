// Turns of the thread.

/** Longest time that a generation keeps the thread, in milliseconds: a frame of a display. */
const mostBusy = 16;

/** Work in pieces, between which other tasks may need the thread. */
export class Turn {
  #begin = performance.now();

  get isLong(): boolean {
    return performance.now() - this.#begin > mostBusy;
  }

  /** Lets other tasks run, and begins anew. */
  async end(): Promise<void> {
    await nextTask();
    this.#begin = performance.now();
  }
}

/** Ends the current task, so that others run: events, timers, and messages. */
export function nextTask(): Promise<void> {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(undefined);
  });
}
