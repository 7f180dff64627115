// A KV cache as lists of numbers: the model that the tests compare the real cache with.

import type { CacheDType, CacheLayout } from 'multihead';
import { round as rounded } from './half_reference.ts';
import { product } from './random_case.ts';
import type { Plain } from './reference.ts';

export const layouts: CacheLayout[] = ['contiguous', 'ring', 'paged'];
export const dtypes: CacheDType[] = ['f32', 'f16', 'bf16', 'int8'];

/** Rounds a row to the cache's dtype. */
function kept(row: number[], dtype: CacheDType): number[] {
  if (dtype !== 'int8') return row.map((x) => rounded(x, dtype));
  const largest = row.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
  if (largest === 0) return row.map(() => 0);
  const inverse = Math.fround(127 / largest);
  const scale = Math.fround(largest / 127);
  return row.map((x) => {
    const steps = Math.fround(x * inverse);
    const below = Math.floor(steps);
    const up = steps - below > 0.5 || (steps - below === 0.5 && below % 2 !== 0);
    return scale * (below + (up ? 1 : 0));
  });
}

type Sizes = Record<'batch' | 'numKvHeads' | 'headDim' | 'valueDim' | 'capacity', number>;

/** The contents of a cache as lists: per batch entry and token, the rows of all heads. */
export class CacheModel {
  readonly config: Sizes;
  readonly dtype: CacheDType;
  readonly ring: boolean;
  readonly keys: number[][][];
  readonly values: number[][][];
  readonly firsts: number[];

  constructor(config: Sizes, layout: CacheLayout, dtype: CacheDType) {
    this.config = config;
    this.dtype = dtype;
    this.ring = layout === 'ring';
    this.keys = Array.from({ length: config.batch }, () => []);
    this.values = Array.from({ length: config.batch }, () => []);
    this.firsts = Array.from({ length: config.batch }, () => 0);
  }

  length(b: number): number {
    return this.keys[b]?.length ?? 0;
  }

  get longest(): number {
    return Math.max(...this.keys.map((tokens) => tokens.length));
  }

  /** True if the window of one of the last `queries` tokens has lost keys, which a ring has overwritten. */
  loses(queries: number, left: number): boolean {
    return this.firsts.some((first, b) => Math.max(0, this.length(b) - queries - left) < first);
  }

  append(k: Plain, v: Plain, counts: number[]): void {
    const { batch } = this.config;
    for (let b = 0; b < batch; b += 1) {
      for (let n = 0; n < (counts[b] ?? 0); n += 1) {
        this.keys[b]?.push(this.#token(k, b, n));
        this.values[b]?.push(this.#token(v, b, n));
      }
      if (this.ring) {
        this.firsts[b] = Math.max(this.firsts[b] ?? 0, this.length(b) - this.config.capacity);
      }
    }
  }

  truncate(b: number, length: number): void {
    this.keys[b]?.splice(length);
    this.values[b]?.splice(length);
    this.firsts[b] = Math.min(this.firsts[b] ?? 0, length);
  }

  /** (B, H_kv, longest, d); zeros beyond the length of an entry. */
  tensor(rows: number[][][], width: number): Plain {
    const { batch, numKvHeads } = this.config;
    const shape = [batch, numKvHeads, this.longest, width];
    const data = new Float64Array(product(shape));
    rows.forEach((tokens, b) =>
      tokens.forEach((token, j) => {
        for (let h = 0; h < numKvHeads; h += 1) {
          const to = ((b * numKvHeads + h) * this.longest + j) * width;
          data.set(token.slice(h * width, (h + 1) * width), to);
        }
      }),
    );
    return { shape, data };
  }

  #token({ shape, data }: Plain, b: number, n: number): number[] {
    const [, heads = 0, rows = 0, width = 0] = shape;
    return Array.from({ length: heads }, (_, h) => {
      const from = ((b * heads + h) * rows + n) * width;
      return kept(
        Array.from({ length: width }, (__, d) => data[from + d] as number),
        this.dtype,
      );
    }).flat();
  }
}
