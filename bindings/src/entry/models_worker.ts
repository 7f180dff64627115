// The script of a model's workers, in browsers and Node; only openModel() starts it. build.mjs bundles it with all its
// imports into one file, which works as a module and as a classic script.

import { modelContents } from '../models/core/contents.js';
import type { Answer } from '../models/workers/protocol.js';
import { ModelRunner } from '../models/workers/runner.js';
import { serve } from '../pool/shared/scope.js';

serve(
  modelContents,
  (api) => new ModelRunner(api),
  (error): Answer => ({ kind: 'failed', error, dead: true }),
);
