// A worker's side: answers the page's calls.

import { failureOf, type Call, type Functions, type Implementation, type Message, type Result } from './protocol.js';

/** By name of a function, the buffers of its result that move to the page instead of being copied. */
type Moved<F extends Functions<F>> = { readonly [name in keyof F]?: (value: ReturnType<F[name]>) => Transferable[] };

/**
 * Answers calls until the worker ends. Calls run side by side as soon as they arrive.
 *
 * @param functions if it is a promise, calls wait for it, and each reports its failure
 * @returns the function that sends an event to the page
 */
export function serve<F extends Functions<F>, Event = never>(functions: Result<Implementation<F>>, moved: Moved<F> = {}): (event: Event) => void {
  // Each call reports the failure.
  if (functions instanceof Promise) functions.catch(() => {});
  const send = (message: Message, buffers: Transferable[] = []): void => postMessage(message, { transfer: buffers });

  async function answer({ id, name, values }: Call): Promise<void> {
    try {
      if (name === 'ping') return send({ id, value: undefined });
      const known = await functions;
      const value = await known[name as keyof F](...(values as Parameters<F[keyof F]>));
      send({ id, value }, moved[name as keyof F]?.(value as ReturnType<F[keyof F]>));
    } catch (error) {
      send({ id, failure: failureOf(error) });
    }
  }

  const lock = `worker ${crypto.getRandomValues(new Uint32Array(4)).join(' ')}`;
  (navigator.locks as LockManager | undefined)
    ?.request(lock, () => {
      send({ lock });
      return new Promise(() => {});
    })
    .catch(() => {});
  onmessage = ({ data }: MessageEvent<Call>) => void answer(data);
  return (event) => send({ event });
}
