// The pending calls to a worker, by number.

export class WorkerCalls {
  readonly #pending = new Map<number, { resolve(value: unknown): void; reject(error: Error): void }>();
  #lastId = 0;

  get waiting(): number {
    return this.#pending.size;
  }

  /** Gives a call its number, which `send` posts to the worker. Settles with the worker's answer. */
  start<T>(send: (id: number) => void): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      this.#lastId += 1;
      this.#pending.set(this.#lastId, { resolve: resolve as (value: unknown) => void, reject });
      send(this.#lastId);
    });
  }

  resolve(id: number, value: unknown): void {
    this.#take(id)?.resolve(value);
  }

  reject(id: number, message: string): void {
    this.#take(id)?.reject(new Error(message));
  }

  rejectAll(message: string): void {
    for (const { reject } of this.#pending.values()) reject(new Error(message));
    this.#pending.clear();
  }

  #take(id: number) {
    const call = this.#pending.get(id);
    this.#pending.delete(id);
    return call;
  }
}
