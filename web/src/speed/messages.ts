// The messages between the speed section and its worker, and the sizes that it offers.

import type { Simd } from 'multihead';

/** A problem size as in bindings/bench/cases.mjs. The inputs and the peers come from the same folder. */
export interface Shape {
  readonly name: string;
  readonly batch: number;
  readonly heads: number;
  readonly numKvHeads: number;
  readonly queries: number;
  readonly keys: number;
  readonly width: number;
}

const shape = (name: string, heads: number, tokens: number, width: number): Shape => ({
  ...{ name, batch: 1, heads, numKvHeads: heads, queries: tokens, keys: tokens, width },
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

export interface Row {
  readonly name: string;
  /** Details, for example the number of workers or the operator. */
  readonly note: string;
  /** Milliseconds per call, one number per round. */
  readonly samples: readonly number[];
  /** Largest absolute difference from the output of plain JavaScript. */
  readonly difference: number;
  /** Reason why there are no measurements; otherwise empty. */
  readonly failure: string;
}

export interface Engine {
  readonly simd: Simd;
  readonly workers: number;
  readonly why: string;
}

/** The functions of the worker. Its events are of type SpeedEvent. */
export interface SpeedCalls {
  measure(request: SpeedRequest): void;
}

export type SpeedEvent =
  | { readonly kind: 'step'; readonly what: string }
  | { readonly kind: 'rows'; readonly engine: Engine; readonly rows: readonly Row[]; readonly round: number; readonly rounds: number };

export const describe = (id: SizeId): string => {
  const { heads, queries, width } = sizes[id];
  return `${queries.toLocaleString('en')} tokens, ${heads} heads of width ${width}`;
};
