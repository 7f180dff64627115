// The state that the sections of the page share.

import type { ForwardResult } from './messages.js';
import type { PageState } from './page_state.js';
import type { Store } from './store.js';

/** The pair of tokens that the visitor points at; all maps highlight it. */
export interface Pointed {
  readonly query: number;
  readonly key: number;
}

export interface App {
  readonly state: Store<PageState>;
  /** The latest forward pass; null before the first, and if the sentence has no tokens. */
  readonly result: Store<ForwardResult | null>;
  readonly pointed: Store<Pointed | null>;
}

export function update(app: App, change: Partial<PageState>): void {
  const next = { ...app.state.get(), ...change };
  app.state.set({ ...next, head: Math.min(next.head, next.heads.length - 1) });
}
