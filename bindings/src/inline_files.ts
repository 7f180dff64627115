// The simd128 build inside of JavaScript, compressed with gzip and then written in base64: 226 kB, 171 kB when it is
// served gzipped. Base64 of the plain file would be 567 kB, 226 kB gzipped.

import { MultiheadError } from './errors.js';
import type { WasmFiles } from './source.js';
import wasm from './inline_wasm.js';

/**
 * Only simd128: every engine that has SIMD runs it, with four fifths of the speed of relaxed (gpt2-1k in Node 26: 39 and
 * 49 GFLOP/s). The relaxed build beside it would make 386 kB of the 215 kB, and Safari and Node 20 could not run it.
 */
export const inlineFiles: WasmFiles = { simd128: unpack };

async function unpack(): Promise<ArrayBuffer> {
  if (typeof DecompressionStream !== 'function') {
    throw new MultiheadError('E_LOAD', {
      argument: 'wasm',
      expected: 'an engine with DecompressionStream (browsers since 2023, Node 20)',
      got: 'an engine without it',
      message:
        'multihead/inline needs DecompressionStream, which this engine lacks: ' +
        'use "multihead", or give load() the .wasm',
    });
  }
  const text = atob(wasm);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) packed[i] = text.charCodeAt(i);

  // Not by way of Response and Blob.stream(), whose first use takes 30 ms in Node.
  const { readable, writable } = new DecompressionStream('gzip');
  const writer = writable.getWriter();
  const written = writer.write(packed).then(() => writer.close());
  const reader = readable.getReader();
  const chunks: Uint8Array<ArrayBuffer>[] = [];
  for (let next = await reader.read(); !next.done; next = await reader.read()) chunks.push(next.value);
  await written;
  return new Blob(chunks).arrayBuffer();
}
