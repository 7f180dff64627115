// The script of a pool's workers, in browsers and Node; only a pool starts it. build.mjs bundles it with all its
// imports into one file, which works as a module and as a classic script.

import { everything } from '../api/multihead.js';
import type { Answer } from '../pool/shared/protocol.js';
import { serve } from '../pool/shared/scope.js';
import { TaskRunner } from '../pool/worker/tasks.js';

serve(
  everything,
  (api) => new TaskRunner(api),
  (error): Answer => ({
    kind: 'failed',
    error,
    dead: false,
    back: { taskBuffer: undefined, transferred: [] },
  }),
);
