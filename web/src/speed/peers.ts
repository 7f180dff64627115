// The peers, each loaded only when a visitor asks for it. A build without them has no_peers.ts instead of this file.

import type { Contender } from './measure.js';
import type { PeerName, Shape } from './messages.js';

/** Makes a case of bindings/bench/cases.mjs ready to run; null if the peer does not offer it. */
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
