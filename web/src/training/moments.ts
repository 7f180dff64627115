// The saved states that a training can go back to. Their number and memory are bounded: when there are too many, every
// second state is dropped, and due() accepts only half as many new ones.

export interface Limits {
  readonly count: number;
  readonly bytes: number;
}

export class Moments {
  readonly #kept = new Map<number, Uint8Array<ArrayBuffer>>();
  readonly #limits: Limits;
  #every: number;
  #bytes = 0;

  constructor(every: number, limits: Limits = { count: 64, bytes: 24e6 }) {
    this.#every = every;
    this.#limits = limits;
  }

  get steps(): number[] {
    return [...this.#kept.keys()].sort((a, b) => a - b);
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** True if a moment should be saved at this step. */
  due(step: number): boolean {
    return step % this.#every === 0 && !this.#kept.has(step);
  }

  get(step: number): Uint8Array<ArrayBuffer> | undefined {
    return this.#kept.get(step);
  }

  keep(step: number, state: Uint8Array<ArrayBuffer>): void {
    this.#drop(step);
    this.#kept.set(step, state);
    this.#bytes += state.length;
    while (this.#kept.size > this.#limits.count || (this.#bytes > this.#limits.bytes && this.#kept.size > 2)) {
      this.#thin(step);
    }
  }

  /** Drops every second moment; the first, the last and `step` stay. */
  #thin(step: number): void {
    this.#every *= 2;
    const steps = this.steps;
    steps.forEach((other, i) => {
      if (i % 2 === 1 && i < steps.length - 1 && other !== step) this.#drop(other);
    });
  }

  #drop(step: number): void {
    this.#bytes -= this.#kept.get(step)?.length ?? 0;
    this.#kept.delete(step);
  }
}
