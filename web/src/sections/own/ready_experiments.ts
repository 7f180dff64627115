// Experiments on the small English model whose results were measured on held-out text; see native/dev/english.

import type { PageState } from '../../state/page_state.js';

export interface Ready {
  readonly title: string;
  /** What was measured. */
  readonly line: string;
  /** What it fills in. */
  readonly state: Partial<PageState>;
}

export const ready: readonly Ready[] = [];
