// Runs before everything else, and fetches the WebAssembly and the words model that the worker is about to ask for: the browser
// answers the worker from its cache.

import { preferredBuild } from 'multihead';
import relaxed from 'multihead/relaxed.wasm?url';
import simd128 from 'multihead/simd128.wasm?url';
import novels from './novels/novels.txt?url';

function wanted(): string | undefined {
  try {
    return preferredBuild().simd === 'relaxed' ? relaxed : simd128;
  } catch {
    return undefined; // The worker reports that this browser lacks WebAssembly SIMD.
  }
}

const file = wanted();
// The story at ?scene=NAME does without the words model.
for (const needed of [file, new URLSearchParams(location.search).has('scene') ? undefined : novels]) {
  // The worker reports a failed transfer, too.
  if (needed !== undefined)
    fetch(needed, { priority: 'high' }).then(
      (response) => response.arrayBuffer(),
      () => undefined,
    );
}
