// The worker of the page's sentence: runs forward passes outside the page's main thread.

import { load, type Multihead } from 'multihead';
import { attend } from './attention/attend.js';
import { createForward, type Forward } from './attention/forward.js';
import type { AttentionCalls, ForwardInput, ForwardResult } from './attention/messages.js';
import { medianTime } from './base/timing.js';
import novels from './novels/novels.txt?url';
import { serve } from './workers/serve.js';

let current: { mh: Multihead; forward: Forward } | undefined;
let words = '';
let last: ForwardInput | undefined;

async function fileOf(address: string): Promise<string> {
  const answer = await fetch(address).catch(() => undefined);
  if (answer?.ok) return answer.text();
  throw Object.assign(new Error('The words model did not arrive'), { code: 'E_LOAD', argument: 'words' });
}

/** Buffers that the worker no longer needs. */
function buffersOf({ trace, meanWeights, straight }: ForwardResult): Transferable[] {
  const matrices = [...Object.values(trace), meanWeights, ...(straight ? [straight.weights, straight.output] : [])];
  return [...new Set(matrices.map(({ data }) => data.buffer as ArrayBuffer))];
}

serve<AttentionCalls>(
  {
    async forward(input) {
      last = input;
      if (input.reads !== undefined) words ||= await fileOf(novels);
      // After a fatal error, load() gives a new instance.
      const mh = await load();
      if (current?.mh !== mh) current = { mh, forward: createForward(mh, () => words) };
      return current.forward(input);
    },
    attend: async (input) => attend(await load(), input),
    async time() {
      const [input, forward] = [last, current?.forward];
      return (
        input &&
        forward &&
        medianTime(
          () => forward.pass(input),
          () => input === last,
        )
      );
    },
  },
  { forward: buffersOf },
);
