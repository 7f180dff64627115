// Turns of the thread.

/** Longest time that a generation keeps the thread, in milliseconds: a frame of a display. */
export const mostBusy = 16;

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
