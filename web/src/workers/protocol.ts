// The messages between the page and a worker: calls with their answers, and events.

import type { MultiheadErrorCode } from 'multihead';
import { messageOf } from '../base/format.js';

export type Functions<F> = { readonly [name in keyof F]: (...values: never[]) => unknown };

export type Result<T> = T | Promise<T>;

/** The functions as a worker implements them: each may return a promise. */
export type Implementation<F extends Functions<F>> = {
  readonly [name in keyof F]: (...values: Parameters<F[name]>) => Result<ReturnType<F[name]>>;
};

/** `ping` is answered by every worker at once, even while it loads. */
export interface Call {
  readonly id: number;
  readonly name: string;
  readonly values: readonly unknown[];
}

export type Message =
  | { readonly id: number; readonly value: unknown }
  | { readonly id: number; readonly failure: Failure }
  | { readonly event: unknown }
  /** Name of a lock that the worker holds until it ends (w3c.github.io/web-locks): no event tells the page that it has ended. */
  | { readonly lock: string };

/**
 * An error as workers send it: its message, and the parts of a MultiheadError. A worker that ended, or whose script threw, has the
 * code E_WORKER; one whose script did not arrive has E_LOAD and the argument "worker".
 */
export interface Failure {
  readonly message: string;
  readonly code?: MultiheadErrorCode | undefined;
  readonly argument?: string | undefined;
  readonly expected?: string | undefined;
  readonly got?: string | undefined;
}

/** Reads the parts of any error. Errors of the package are told by their code: instanceof would not know another copy of the class. */
export function failureOf(error: unknown): Failure {
  const { code, argument, expected, got } = Object(error) as Failure;
  // The code of a DOMException is a number.
  return { message: messageOf(error), ...(typeof code === 'string' && { code, argument, expected, got }) };
}

/** For a call whose failure is told elsewhere. */
export const ignore = (): void => {};
