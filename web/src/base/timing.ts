// Times a forward pass in the breaks between other work.

const batch = 2; // milliseconds: one pass is too short for the coarse clocks of browsers
const untimed = 15; // batches in which the engine's compiler warms up
const timed = 15;

export const median = (values: readonly number[]): number => [...values].sort((a, b) => a - b)[values.length >> 1] ?? NaN;

/**
 * Median duration of a call in milliseconds; undefined if `wanted` returns false before the end. Starts after 150 ms,
 * and handles messages between the batches, so that it does not delay typing.
 */
export async function medianTime(call: () => void, wanted: () => boolean): Promise<number | undefined> {
  const samples: number[] = [];
  for (let round = 0; round < untimed + timed; round += 1) {
    await new Promise((done) => setTimeout(done, round === 0 ? 150 : 0));
    if (!wanted()) return undefined;
    const milliseconds = meanOver(batch, call);
    if (round >= untimed) samples.push(milliseconds);
  }
  return median(samples);
}

/** Mean duration of a call in milliseconds, over calls for `span` milliseconds. */
export function meanOver(span: number, call: () => void): number {
  const start = performance.now();
  let calls = 0;
  let elapsed = 0;
  while (elapsed < span) {
    call();
    calls += 1;
    elapsed = performance.now() - start;
  }
  return elapsed / calls;
}
