// The messages between the page and a worker: calls with their answers, and events.

/** The functions that a worker offers, by name. */
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
  /** `argument` is copied from a MultiheadError. */
  | { readonly id: number; readonly failure: string; readonly argument?: string | undefined }
  | { readonly event: unknown }
  /** Name of a lock that the worker holds until it ends (w3c.github.io/web-locks): no event tells the page that it has ended. */
  | { readonly lock: string };
