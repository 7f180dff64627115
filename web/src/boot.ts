// Runs before everything else, and fetches the WebAssembly that the worker is about to ask for: the browser
// answers the worker from its cache. A wrong guess costs one transfer, no more, for the worker decides by itself.

import relaxed from 'multihead/relaxed.wasm?url';
import simd128 from 'multihead/simd128.wasm?url';

/** A module with one function that uses f32x4.relaxed_madd. */
const relaxedProbe = Uint8Array.of(
  ...[0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00], // magic and version
  ...[0x01, 0x06, 0x01, 0x60, 0x01, 0x7b, 0x01, 0x7b], // one type: v128 to v128
  ...[0x03, 0x02, 0x01, 0x00], // one function, of that type
  ...[0x0a, 0x0d, 0x01, 0x0b, 0x00], // its body, without locals
  ...[0x20, 0x00, 0x20, 0x00, 0x20, 0x00, 0xfd, 0x85, 0x02, 0x0b],
);

if (typeof WebAssembly === 'object') {
  const wanted = WebAssembly.validate(relaxedProbe) ? relaxed : simd128;
  // A failure is the worker's to report.
  fetch(wanted, { priority: 'high' }).then(
    (response) => response.arrayBuffer(),
    () => undefined,
  );
}
