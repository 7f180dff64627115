// window.multiheadPage: what the browser tests read, and the curious may.

import type { App } from './app.js';
import type { ForwardResult } from './messages.js';
import { tokenise } from './tokens.js';

export interface PageApi {
  /**
   * The forward pass on the screen: tokens, heads, causal, the weights (q, k and v as
   * (H·16, 64), out as (64, H·16), row-major) and every step of the trace, x among them. Null while
   * there is none.
   */
  snapshot(): ForwardResult | null;
  /** Waits until the screen shows what is chosen now; null when there is nothing to show. */
  settled(): Promise<ForwardResult | null>;
}

declare global {
  interface Window {
    multiheadPage?: PageApi;
  }
}

export function exposePage(app: App): void {
  const isCurrent = (result: ForwardResult | null): boolean => {
    const { text, heads, causal } = app.state.get();
    const { tokens } = tokenise(text);
    if (!result) return tokens.length === 0;
    return (
      JSON.stringify([tokens, heads, causal]) === JSON.stringify([result.tokens, result.heads, result.causal])
    );
  };
  window.multiheadPage = {
    snapshot: () => app.result.get(),
    settled: () =>
      new Promise((done) => {
        let stop: (() => void) | undefined;
        let found = false;
        stop = app.result.watch((result) => {
          if (!isCurrent(result)) return;
          found = true;
          stop?.();
          done(result);
        });
        if (found) stop();
      }),
  };
}
