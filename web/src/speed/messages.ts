// The messages between the speed section and its worker, and the sizes that it offers.

import type { Simd } from 'multihead';

/** As bindings/bench/cases.mjs describes them; the inputs and the peers come from there. */
export interface Shape {
  readonly name: string;
  readonly batch: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly queries: number;
  readonly keys: number;
  readonly width: number;
}

const shape = (name: string, heads: number, tokens: number, width: number): Shape => ({
  ...{ name, batch: 1, heads, kvHeads: heads, queries: tokens, keys: tokens, width },
});

export const sizes = {
  sentence: shape('sentence', 4, 32, 16),
  paragraph: shape('paragraph', 12, 256, 64),
  page: shape('page', 12, 1024, 64),
} as const;
export const sizeIds = ['sentence', 'paragraph', 'page'] as const satisfies readonly (keyof typeof sizes)[];
export type SizeId = (typeof sizeIds)[number];

export const peerNames = ['onnxruntime', 'tensorflow'] as const;
export type PeerName = (typeof peerNames)[number];

export interface SpeedRequest {
  readonly size: SizeId;
  readonly peers: readonly PeerName[];
}

/** One implementation's measurements so far. */
export interface Row {
  readonly name: string;
  /** For example how many workers, or which operator. */
  readonly note: string;
  /** Milliseconds of a call, one number a round. */
  readonly samples: readonly number[];
  /** Largest absolute difference of the output from plain JavaScript's. */
  readonly difference: number;
  /** Why there are no measurements; else empty. */
  readonly failure: string;
}

export interface Engine {
  readonly simd: Simd;
  readonly workers: number;
  readonly why: string;
}

export type SpeedAnswer =
  | { readonly kind: 'step'; readonly what: string }
  | { readonly kind: 'rows'; readonly engine: Engine; readonly rows: readonly Row[]; readonly round: number; readonly rounds: number }
  | { readonly kind: 'done' }
  | { readonly kind: 'failed'; readonly message: string }
  /** The lock that the worker holds for life. */
  | { readonly kind: 'lock'; readonly lock: string };
