// The callbacks of load() for the bytes loaded so far. Callers that share an instance share its progress.

type Listener = (loaded: number, total: number | undefined) => void;

export class Progress {
  readonly #listeners = new Set<Listener>();
  #last: Parameters<Listener> | undefined;

  report(...progress: Parameters<Listener>): void {
    this.#last = progress;
    for (const listener of this.#listeners) listener(...progress);
  }

  /**
   * Calls `onProgress` until the promise settles, at once if bytes are loaded already. Settles like the promise, or
   * rejects with the error that `onProgress` throws, which does not concern the other callers.
   */
  async watch<T>(promise: Promise<T>, onProgress: Listener | undefined): Promise<T> {
    if (onProgress === undefined) return promise;
    let listener: Listener = onProgress;
    const failed = new Promise<never>((_, reject) => {
      listener = (...progress) => {
        try {
          onProgress(...progress);
        } catch (error) {
          this.#listeners.delete(listener);
          reject(error as Error);
        }
      };
    });
    this.#listeners.add(listener);
    if (this.#last !== undefined) listener(...this.#last);
    try {
      return await Promise.race([promise, failed]);
    } finally {
      this.#listeners.delete(listener);
    }
  }
}
