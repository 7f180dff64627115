// Pools with several numbers of workers, and the comparison of their results with one thread.

import type { Simd, Tensor } from 'multihead';
import { createPool, type Pool } from 'multihead/pool';
import { expect } from 'vitest';
import { rejectionOf } from './builds.ts';

export type Results = Record<string, Tensor | Tensor[]>;

const bytesOf = ({ buffer, byteOffset, byteLength }: ArrayBufferView): Buffer => Buffer.from(buffer as ArrayBuffer, byteOffset, byteLength);

const isTensor = (value: object): value is { data: ArrayBufferView; shape: readonly number[] } => 'data' in value && 'shape' in value;

/** Compares the bits of all results by name: tensors, arrays and numbers. */
export function sameResults(actual: unknown, expected: unknown, label: string): void {
  if (ArrayBuffer.isView(expected)) {
    expect(ArrayBuffer.isView(actual) && bytesOf(actual).equals(bytesOf(expected)), label).toBe(true);
  } else if (typeof expected !== 'object' || expected === null) {
    expect(actual, label).toBe(expected);
  } else if (isTensor(expected)) {
    const { data, shape } = actual as typeof expected;
    expect(shape, label).toEqual([...expected.shape]);
    sameResults(data, expected.data, label);
  } else {
    expect(Object.keys(actual as object).sort(), label).toEqual(Object.keys(expected).sort());
    for (const [name, each] of Object.entries(expected)) {
      sameResults((actual as Record<string, unknown>)[name], each, `${name}, ${label}`);
    }
  }
}

/** Disposes the tensors of a result. */
function free(result: unknown): void {
  if (typeof result !== 'object' || result === null || ArrayBuffer.isView(result)) return;
  if ('dispose' in result) (result as Tensor).dispose();
  else Object.values(result).forEach(free);
}

/**
 * Compares a call on one thread, whose results it frees, with the same call of a pool: their results, or the messages
 * of their errors. Returns true if there were results.
 */
export async function sameOfBoth(local: () => unknown, remote: () => Promise<unknown>, label: string): Promise<boolean> {
  let expected: unknown;
  try {
    expected = local();
  } catch (error) {
    expect((await rejectionOf(remote())).message, label).toBe((error as Error).message);
    return false;
  }
  const actual = await remote();
  if (expected !== undefined) sameResults(actual, expected, label);
  free(expected);
  return true;
}

/** Opens pools with 1, 2, 3 and 5 workers, with both exchanges. The pools divide even small calls. */
export function openPools(simd: Simd): Promise<Pool[]> {
  const open = (workers: number, exchange: 'auto' | 'messages') => createPool({ workers, simd, exchange, leastWork: 1 });
  return Promise.all([open(1, 'auto'), open(2, 'messages'), open(3, 'auto'), open(5, 'messages')]);
}

/** Runs `body` on one pool after the other. */
export async function inEach(pools: readonly Pool[], body: (pool: Pool, label: string) => Promise<void>): Promise<void> {
  for (const pool of pools) await body(pool, `${pool.backend.workers} workers`);
}
