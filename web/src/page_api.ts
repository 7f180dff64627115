// window.multiheadPage: the numbers of the page, for the browser tests and for the console.

import type { App } from './app.js';
import type { ForwardResult } from './messages.js';
import { tokenise } from './tokens.js';

export interface PageApi {
  /**
   * The forward pass on the screen: tokens, heads, causal, the weights (q, k and v as
   * (H·16, 64), out as (64, H·16), row-major) and every step of the trace, x included. Null if no
   * forward pass is shown.
   */
  snapshot(): ForwardResult | null;
  /** Resolves once the screen shows the current choices; with null if the sentence has no tokens. */
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
