// Ctrl-C. While the command computes without a pause, as it does for a prompt, no listener would run: the signal then
// ends the process at once, as the system does it. Elsewhere work is aborted and cleaned up.

/** The part of the process that is used. */
export interface Signals {
  on(event: 'SIGINT', listener: () => void): unknown;
  off(event: 'SIGINT', listener: () => void): unknown;
}

/** Work that Ctrl-C has ended. */
export class Interrupted extends Error {}

export class Interrupt {
  readonly #signals: Signals;
  readonly #aborter = new AbortController();
  readonly #abort = (): void => this.#aborter.abort(new Error('interrupted'));
  #listens = false;

  constructor(signals: Signals) {
    this.#signals = signals;
  }

  get signal(): AbortSignal {
    return this.#aborter.signal;
  }

  /** Aborts the signal at Ctrl-C while `work` runs. */
  async during<T>(work: () => Promise<T>): Promise<T> {
    this.listen(true);
    try {
      return await work();
    } finally {
      this.listen(false);
    }
  }

  /** True aborts the signal at Ctrl-C; false lets Ctrl-C end the process. */
  listen(listens: boolean): void {
    if (listens === this.#listens) return;
    this.#listens = listens;
    if (listens) this.#signals.on('SIGINT', this.#abort);
    else this.#signals.off('SIGINT', this.#abort);
  }
}
