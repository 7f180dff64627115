// Runs before everything else, and fetches the WebAssembly that the worker is about to ask for: the browser
// answers the worker from its cache.

import { preferredBuild } from 'multihead';
import relaxed from 'multihead/relaxed.wasm?url';
import simd128 from 'multihead/simd128.wasm?url';

function wanted(): string | undefined {
  try {
    return preferredBuild().simd === 'relaxed' ? relaxed : simd128;
  } catch {
    return undefined; // The worker reports that this browser lacks WebAssembly SIMD.
  }
}

const file = wanted();
if (file !== undefined) {
  // The worker reports a failed transfer, too.
  fetch(file, { priority: 'high' }).then(
    (response) => response.arrayBuffer(),
    () => undefined,
  );
}
