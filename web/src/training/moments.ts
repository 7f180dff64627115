// The saved states that a training can go back to. Their number and memory are bounded: when there are too many, half of
// them are dropped, and due() accepts only half as many new ones.

export interface Limits {
  readonly count: number;
  readonly bytes: number;
}

export const usualLimits: Limits = { count: 64, bytes: 24e6 };

export class Moments {
  readonly #kept = new Map<number, Uint8Array<ArrayBuffer>>();
  readonly #limits: Limits;
  #every: number;
  #bytes = 0;

  constructor(every: number, limits = usualLimits) {
    this.#every = every;
    this.#limits = limits;
  }

  get steps(): number[] {
    return [...this.#kept.keys()].sort((a, b) => a - b);
  }

  get bytes(): number {
    return this.#bytes;
  }

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
    while (this.#kept.size > this.#limits.count || this.#bytes > this.#limits.bytes) {
      if (!this.#halve(step)) break;
    }
  }

  /**
   * Drops half of the moments, each time the moment whose neighbors are closest to each other. The first, the last and `step`
   * stay. Returns false if there was none to drop.
   */
  #halve(step: number): boolean {
    this.#every *= 2;
    const before = this.#kept.size;
    while (this.#kept.size > Math.ceil(before / 2)) {
      const steps = this.steps;
      const inner = steps.slice(1, -1).filter((other) => other !== step);
      const room = (other: number): number => steps[steps.indexOf(other) + 1]! - steps[steps.indexOf(other) - 1]!;
      const [closest] = inner.sort((a, b) => room(a) - room(b));
      if (closest === undefined) break;
      this.#drop(closest);
    }
    return this.#kept.size < before;
  }

  #drop(step: number): void {
    this.#bytes -= this.#kept.get(step)?.length ?? 0;
    this.#kept.delete(step);
  }
}
