// Decodes a WebAssembly build that is embedded in JavaScript.

import { MultiheadError } from '../runtime/errors.js';
import type { WasmFiles } from './source.js';

/**
 * The simd128 build inside JavaScript: 220 kB of base64, 166 kB when it is served in gzip or Brotli. Base64 of the plain
 * file would be 530 kB, 217 kB in gzip and 176 kB in Brotli.
 *
 * Contains only simd128, which runs in every engine with SIMD at four fifths of the speed of relaxed (gpt2-1k in Node
 * 26: 39 and 49 GFLOP/s). Including the relaxed build would add 166 kB, and Safari and Node 20 could not run
 * it.
 */
export const inlineFiles = (base64: string): WasmFiles => ({ simd128: () => unpack(base64) });

/** Decodes base64 and decompresses gzip. */
export async function unpack(base64: string): Promise<ArrayBuffer> {
  if (typeof DecompressionStream !== 'function') {
    throw new MultiheadError('E_LOAD', {
      argument: 'wasm',
      expected: 'an engine with DecompressionStream (browsers since 2023, Node 20)',
      got: 'an engine without it',
      message: 'multihead/inline needs DecompressionStream, which this engine lacks: use "multihead", or give load() the .wasm',
    });
  }
  const text = atob(base64);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) packed[i] = text.charCodeAt(i);

  // Avoids Response and Blob.stream(), whose first use takes 30 ms in Node.
  const { readable, writable } = new DecompressionStream('gzip');
  const writer = writable.getWriter();
  const written = writer.write(packed).then(() => writer.close());
  const reader = readable.getReader();
  const chunks: Uint8Array<ArrayBuffer>[] = [];
  for (let next = await reader.read(); !next.done; next = await reader.read()) chunks.push(next.value);
  await written;
  return new Blob(chunks).arrayBuffer();
}
