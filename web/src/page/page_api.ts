// window.multiheadPage: the numbers of the page, for the browser tests and for the console.

import type { ForwardResult } from '../attention/messages.js';
import { allDrawn } from '../dom/draw_queue.js';
import { isCurrent, type App } from '../state/app.js';
import type { TrainingView } from '../training/view.js';

export interface PageApi {
  /**
   * The forward pass on the screen: tokens, heads, causal, the weights (q, k and v as
   * (H·16, 64), out as (64, H·16), row-major) and every step of the trace, x included. Null if no
   * forward pass is shown.
   */
  snapshot(): ForwardResult | null;
  /** Resolves once the screen shows the current choices; to null if the sentence has no tokens. */
  settled(): Promise<ForwardResult | null>;
  training(): TrainingView;
}

declare global {
  interface Window {
    multiheadPage?: PageApi;
  }
}

export function exposePage(app: App): void {
  window.multiheadPage = {
    snapshot: () => app.result.get(),
    training: () => app.training.view.get(),
    settled: () =>
      new Promise((done) => {
        // oxlint-disable-next-line prefer-const -- watch() may call the function before it returns
        let stop: (() => void) | undefined;
        let found = false;
        stop = app.result.watch((result) => {
          if (!isCurrent(result, app)) return;
          found = true;
          stop?.();
          void allDrawn().then(() => done(result));
        });
        if (found) stop();
      }),
  };
}
