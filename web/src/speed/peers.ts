// The peers. Each is loaded only when a visitor selects it. A build without peers uses no_peers.ts instead of this
// file.

import type { Contender } from './measure.js';
import type { PeerName, Shape } from './messages.js';

/** Prepares a case of bindings/bench/cases.mjs; returns null if the peer does not support it. */
export type MakePeer = (which: {
  readonly op: 'forward';
  readonly shape: Shape;
  readonly mask: 'causal';
  readonly dtype: 'f32';
}) => Promise<(Omit<Contender, 'name' | 'isAsync'> & { readonly isAsync?: boolean }) | null>;

export const peers: { readonly [name in PeerName]?: () => Promise<MakePeer> } = {
  onnxruntime: async () => (await import('./peer_onnxruntime.js')).make,
  tensorflow: async () => (await import('./peer_tensorflow.js')).make,
};
