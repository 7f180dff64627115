// Measures several implementations in turns, so that a temporary slowdown of the machine affects all of them.

export interface Contender {
  readonly name: string;
  readonly note?: string | undefined;
  run(): unknown;
  /** True if run() returns a promise to wait for. */
  readonly isAsync: boolean;
  output(): Float32Array | Promise<Float32Array>;
  dispose?(): unknown;
}

export interface Pace {
  readonly rounds: number;
  /** Milliseconds of calls before the first round, which warm up the engine's compilers. */
  readonly warmUp: number;
  /** Minimum milliseconds of a sample, because clocks of browsers tick in steps of up to 1 ms. */
  readonly sample: number;
}

export const usualPace: Pace = { rounds: 7, warmUp: 200, sample: 25 };

async function timeOf({ run, isAsync }: Contender, calls: number): Promise<number> {
  const start = performance.now();
  if (isAsync) for (let i = 0; i < calls; i += 1) await run();
  else for (let i = 0; i < calls; i += 1) run();
  return performance.now() - start;
}

/** Runs an implementation until it is warm. @returns the number of calls in a sample */
export async function warmUp(contender: Contender, { warmUp: least, sample }: Pace): Promise<number> {
  let calls = 1;
  let perCall = 0;
  for (const start = performance.now(); perCall === 0 || performance.now() - start < least;) {
    const milliseconds = await timeOf(contender, calls);
    if (milliseconds < 2) calls *= 2;
    else perCall = milliseconds / calls;
  }
  return Math.max(1, Math.round(sample / perCall));
}

/** Yields after each round the milliseconds per call: one list per implementation, one number per round. */
export async function* interleaved(
  contenders: readonly { readonly contender: Contender; readonly calls: number }[],
  rounds: number,
): AsyncGenerator<readonly (readonly number[])[]> {
  const samples: number[][] = contenders.map(() => []);
  for (let round = 0; round < rounds; round += 1) {
    for (const [at, { contender, calls }] of contenders.entries()) {
      samples[at]!.push((await timeOf(contender, calls)) / calls);
    }
    yield samples.map((list) => [...list]);
  }
}

/** Largest absolute difference; Infinity if a value is NaN or the lengths differ. */
export function largestDifference(a: Float32Array, b: Float32Array): number {
  if (a.length !== b.length) return Infinity;
  let largest = 0;
  for (let i = 0; i < a.length; i += 1) {
    const difference = Math.abs(a[i]! - b[i]!);
    if (Number.isNaN(difference)) return Infinity;
    if (difference > largest) largest = difference;
  }
  return largest;
}
