// Errors that only a pool throws, and the conversion of errors for messages between threads.

import { disposedError, MultiheadError, optionError } from '../../runtime/errors.js';
import type { SentError } from './protocol.js';

export const disposedPool = (): MultiheadError => disposedError('pool', 'a pool');

export const disposedObject = (): MultiheadError => disposedError('this', 'an object');

export const objectsApart = (): MultiheadError =>
  optionError(
    'arguments',
    'objects that live in the same workers of this pool',
    'objects of different workers or pools: a cache belongs to the layer that made it, a trainer to the pool of its model',
  );

/** @param why the reason why the worker ended */
export const lostObject = (why: string): MultiheadError =>
  new MultiheadError('E_WORKER', {
    argument: 'this',
    expected: 'an object whose worker runs',
    got: `one whose worker has ended (${why})`,
    message: `the worker in which this object lived has ended (${why}), and the object is lost: make a new one`,
  });

export const endedWorker = (why: string): MultiheadError =>
  new MultiheadError('E_WORKER', {
    argument: 'worker',
    expected: 'a worker that finishes the call',
    got: `one that ended (${why})`,
    message: `the worker that ran this call has ended (${why}); objects that lived in it are lost, and another takes its place`,
  });

export const unsendable = (error: unknown): MultiheadError =>
  new MultiheadError('E_OPTION', {
    argument: 'options',
    expected: 'values that can be sent to a worker',
    got: error instanceof Error ? error.message : String(error),
    cause: error,
  });

export function sentError(error: unknown): SentError {
  if (error instanceof MultiheadError) {
    const { code, argument, expected, got, message } = error;
    return { code, argument, expected, got, message };
  }
  const message = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  return { code: undefined, argument: 'worker', expected: 'a call that ends', got: message, message };
}

/** Converts the error of a worker to the MultiheadError or Error that the caller gets. */
export const receivedError = ({ code, ...parts }: SentError): MultiheadError => new MultiheadError(code ?? 'E_WORKER', parts);
