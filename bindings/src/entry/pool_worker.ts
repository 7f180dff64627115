// The script of a pool's workers, in browsers and Node; only a pool starts it. build.mjs bundles it with all its
// imports into one file, which works as a module and as a classic script.

import { everything } from '../api/multihead.js';
import { createLoader } from '../load/loader.js';
import { sentError } from '../pool/shared/errors.js';
import type { Reply, Request } from '../pool/shared/protocol.js';
import { listen } from '../pool/shared/scope.js';
import { TaskRunner } from '../pool/worker/tasks.js';

const load = createLoader(() => {
  throw new Error('a pool sends the module to its workers');
}, everything);
let runner: TaskRunner | undefined;

async function start({ module, simd }: Extract<Request, { kind: 'start' }>): Promise<Reply> {
  try {
    runner = new TaskRunner(await load({ wasm: module, simd }));
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
      runner?.release(request.object);
    } else {
      // The pool sends tasks only after this worker has reported that it is ready.
      const { message, transfer } = (runner as TaskRunner).run(request.task, request.team);
      send(message, transfer);
    }
  },
  refuse() {
    const error = sentError(new Error('the message with the call could not be read'));
    const back = { taskBuffer: undefined, transferred: [] };
    return runner === undefined ? { kind: 'broken', error } : { kind: 'failed', error, dead: false, back };
  },
});
