// Decodes a WebAssembly build that is embedded in JavaScript.

import { MultiheadError } from './errors.js';

/** Decodes base64 and decompresses gzip. */
export async function unpack(base64: string): Promise<ArrayBuffer> {
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
