// The AbortSignals of load(), train() and createPool().

import { MultiheadError, optionError } from './errors.js';
import { describe } from './tensor.js';

/**
 * Throws `E_OPTION` unless `signal` is undefined or looks like an AbortSignal. Avoids instanceof, because the signal
 * may come from another realm, such as an iframe.
 */
export function checkSignal(signal: unknown): void {
  if (signal === undefined) return;
  const { aborted, addEventListener, removeEventListener } = Object(signal) as AbortSignal;
  const methods = [addEventListener, removeEventListener];
  if (typeof aborted === 'boolean' && methods.every((each) => typeof each === 'function')) return;
  throw optionError('signal', 'an AbortSignal', describe(signal));
}

/** @param what name of the aborted call, for example "load" */
export function abortedError(signal: AbortSignal, what: string): MultiheadError {
  const cause: unknown = signal.reason;
  return new MultiheadError('E_ABORTED', {
    argument: 'signal',
    expected: 'a signal that is not aborted',
    got: cause instanceof Error ? cause.message : describe(cause),
    message: `${what}() was aborted`,
    cause,
  });
}

/** Settles like the promise, or rejects as soon as the signal is aborted. */
export async function abortable<T>(promise: Promise<T>, signal: AbortSignal | undefined, what: string): Promise<T> {
  if (signal === undefined) return promise;
  let onAbort = (): void => {};
  const aborted = new Promise<never>((_, reject) => {
    onAbort = () => reject(abortedError(signal, what));
    if (signal.aborted) onAbort();
    signal.addEventListener('abort', onAbort, { once: true });
  });
  try {
    return await Promise.race([aborted, promise]);
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}
