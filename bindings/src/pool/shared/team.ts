// A worker's link to the other workers of a team that run the same call: see src/engine/runtime/team.h. Members
// exchange results through shared memory.

/** Parameters of one member in a team call. */
export interface TeamCall {
  readonly rank: number;
  readonly members: number;
  /**
   * Used by this call only: the phase of each member, then a flag that is nonzero if the call is given up. Initially
   * zeros.
   */
  readonly control: SharedArrayBuffer;
  /**
   * Two halves that exchanges use alternately. A member may overwrite a half once all others have reached the next
   * exchange.
   */
  readonly sharedBlock: SharedArrayBuffer;
}

export const sharedBlockBytes = 2 ** 22;
const left = 2 ** 31 - 1;
/** Polls, of some nanoseconds each, before a member sleeps. */
const spins = 20_000;
/** Longest sleep in ms. Limits the wait if a member ends just when another begins to wait for it. */
const longestSleep = 100;

export class TeamLink {
  readonly #call: TeamCall;
  readonly #control: Int32Array;
  readonly #memory: () => ArrayBufferLike;
  #phase = 0;

  /** `memory` returns the instance's current memory, because growth replaces it. */
  constructor(call: TeamCall, memory: () => ArrayBufferLike) {
    this.#call = call;
    this.#control = new Int32Array(call.control);
    this.#memory = memory;
  }

  /** Called by the core. Returns 0 if the call is given up. */
  exchange(address: number, rows: number, stride: number, boundsAddress: number): number {
    const { members } = this.#call;
    const bounds = [...new Uint32Array(this.#memory() as ArrayBuffer, boundsAddress, members + 1)];
    const rowBytes = bounds[members] as number;
    const half = this.#call.sharedBlock.byteLength / 2;
    for (let begin = 0; begin < rowBytes; begin += half) {
      const end = Math.min(rowBytes, begin + half);
      const clipped = bounds.map((bound) => Math.min(Math.max(bound, begin), end) - begin);
      const most = Math.max(1, Math.floor(half / (end - begin)));
      for (let row = 0; row < rows; row += most) {
        const count = Math.min(most, rows - row);
        if (!this.#exchangeBlock(address + begin + row * stride, count, stride, clipped)) return 0;
      }
    }
    return 1;
  }

  /** Exchanges rows that together fit in one half of the sharedBlock. */
  #exchangeBlock(address: number, rows: number, stride: number, bounds: readonly number[]): boolean {
    const { rank, members, sharedBlock } = this.#call;
    const rowBytes = bounds[members] as number;
    const half = sharedBlock.byteLength / 2;
    const shown = new Uint8Array(sharedBlock, (this.#phase % 2) * half, half);
    const memory = new Uint8Array(this.#memory() as ArrayBuffer);
    const copy = (from: Uint8Array, to: Uint8Array, member: number, out: boolean): void => {
      const [first, end] = [bounds[member] as number, bounds[member + 1] as number];
      for (let row = 0; row < rows && end > first; row += 1) {
        const [inMemory, inBlock] = [address + row * stride, row * rowBytes];
        const [source, target] = out ? [inMemory, inBlock] : [inBlock, inMemory];
        to.set(from.subarray(source + first, source + end), target + first);
      }
    };
    copy(memory, shown, rank, true);
    if (!this.#arrive()) return false;
    for (let member = 0; member < members; member += 1) {
      if (member !== rank) copy(shown, memory, member, false);
    }
    return true;
  }

  /** Waits until all members have reached this phase. False if a member has left. */
  #arrive(): boolean {
    const { rank, members } = this.#call;
    const control = this.#control;
    const phase = (this.#phase += 1);
    Atomics.store(control, rank, phase);
    Atomics.notify(control, rank);
    for (let member = 0; member < members; member += 1) {
      for (let attempt = 0; ; attempt += 1) {
        const seen = Atomics.load(control, member);
        if (seen === left || Atomics.load(control, members) !== 0) return false;
        if (seen >= phase) break;
        if (attempt > spins) Atomics.wait(control, member, seen, longestSleep);
      }
    }
    return true;
  }

  /** Ends a call; the next call may then use the sharedBlock. */
  finish(): void {
    this.#arrive();
  }

  /** Tells the other members that this one has failed. */
  leave(): void {
    Atomics.store(this.#control, this.#call.rank, left);
    Atomics.notify(this.#control, this.#call.rank);
  }
}

/**
 * Waits for all members, and returns the first one's result. If one member fails, the others report that a member left
 * (argument 'team'): throws the original error.
 */
export async function firstResult<R>(members: readonly Promise<R>[]): Promise<R> {
  const results = await Promise.allSettled(members);
  const errors = results.flatMap((each) => (each.status === 'rejected' ? [each.reason as { argument?: string }] : []));
  if (errors.length > 0) throw errors.find(({ argument }) => argument !== 'team') ?? errors[0];
  return (results[0] as PromiseFulfilledResult<R>).value;
}

/** Ends the waiting of all members from outside, because one member will never arrive. */
export function giveUp({ control: buffer, members }: TeamCall): void {
  const control = new Int32Array(buffer);
  Atomics.store(control, members, 1);
  for (let member = 0; member < members; member += 1) Atomics.notify(control, member);
}
