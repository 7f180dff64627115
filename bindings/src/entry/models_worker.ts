// The script of a model's workers, in browsers and Node; only openModel() starts it. build.mjs bundles it with all its
// imports into one file, which works as a module and as a classic script.

import { createLoader } from '../load/loader.js';
import { modelContents } from '../models/core/contents.js';
import type { Reply, Request } from '../models/workers/protocol.js';
import { ModelRunner } from '../models/workers/runner.js';
import { sentError } from '../pool/shared/errors.js';
import { listen } from '../pool/shared/scope.js';

const load = createLoader(() => {
  throw new Error('openModel() sends the module to its workers');
}, modelContents);
let runner: ModelRunner | undefined;

async function start({ module, simd }: Extract<Request, { kind: 'start' }>): Promise<Reply> {
  try {
    runner = new ModelRunner(await load({ wasm: module, simd }));
    return { kind: 'ready' };
  } catch (error) {
    return { kind: 'broken', error: sentError(error) };
  }
}

listen<Request, Reply>({
  receive(request, send) {
    if (request.kind === 'start') {
      void start(request).then((reply) => send(reply, []));
    } else if (request.kind === 'release') {
      runner?.release(request.id);
    } else {
      // Tasks come only after this worker has reported that it is ready.
      const { message, transfer } = (runner as ModelRunner).run(request.task, request.team);
      send(message, transfer);
    }
  },
  refuse() {
    const error = sentError(new Error('the message with the call could not be read'));
    return runner === undefined ? { kind: 'broken', error } : { kind: 'failed', error, dead: true };
  },
});
