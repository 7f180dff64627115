// Pools of several numbers of workers, and the comparison of their results with those of one thread.

import type { Simd, Tensor } from 'multihead';
import { createPool, type Pool } from 'multihead/pool';
import { expect } from 'vitest';

export interface Sent {
  readonly data: ArrayBufferView;
  readonly shape: readonly number[];
}
export type Results = Record<string, Tensor | Tensor[]>;

const bytesOf = ({ buffer, byteOffset, byteLength }: ArrayBufferView): Buffer =>
  Buffer.from(buffer as ArrayBuffer, byteOffset, byteLength);

function sameBits(actual: Sent, expected: Sent, label: string): void {
  expect(actual.shape, label).toEqual([...expected.shape]);
  expect(bytesOf(actual.data).equals(bytesOf(expected.data)), label).toBe(true);
}

/** Compares the bits of all results. */
export function sameResults(actual: object, expected: object, label: string): void {
  expect(Object.keys(actual).sort(), label).toEqual(Object.keys(expected).sort());
  for (const [name, given] of Object.entries(actual)) {
    const wanted = (expected as Record<string, Tensor | Tensor[] | Float32Array>)[name] as Tensor | Tensor[] | Float32Array;
    if (ArrayBuffer.isView(wanted)) expect(bytesOf(given as Float32Array).equals(bytesOf(wanted)), `${name}, ${label}`).toBe(true);
    else if (!Array.isArray(wanted)) sameBits(given as Sent, wanted, `${name}, ${label}`);
    else wanted.forEach((each, i) => sameBits((given as Sent[])[i] as Sent, each, `${name} ${i}, ${label}`));
  }
}

/** With 1, 2, 3 and 5 workers, by both exchanges. Even small calls are divided. */
export function openPools(simd: Simd): Promise<Pool[]> {
  const open = (workers: number, exchange: 'auto' | 'messages') =>
    createPool({ workers, simd, exchange, leastWork: 1 });
  return Promise.all([open(1, 'auto'), open(2, 'messages'), open(3, 'auto'), open(5, 'messages')]);
}

/** One pool after the other. */
export async function inEach(pools: readonly Pool[], body: (pool: Pool, label: string) => Promise<void>): Promise<void> {
  for (const pool of pools) await body(pool, `${pool.backend.workers} workers`);
}
