// The body of a file for a response: compressed if its type compresses well and the client accepts an encoding.

import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { extname } from 'node:path';
import { promisify } from 'node:util';
import { brotliCompress, constants, gzip } from 'node:zlib';

const compressible = new Set(['.css', '.html', '.js', '.json', '.map', '.mjs', '.svg', '.txt', '.wasm', '.webmanifest']);

/**
 * Brotli's quality. 11 takes 0.8 s for the module's wasm and saves a tenth, of scripts a twentieth; for the peers' wasm it
 * would take a minute.
 */
const qualityFor = (bytes) => (bytes.length > 1e6 ? 5 : 11);

const isWasm = (bytes) => bytes.subarray(0, 4).equals(Buffer.from('\0asm'));

/** Encodings, preferred first. */
const encodings = {
  br: (bytes) => {
    const params = { [constants.BROTLI_PARAM_QUALITY]: qualityFor(bytes) };
    // Distances in WebAssembly are often even: 0.17 % fewer bytes. Scripts would have more.
    if (isWasm(bytes)) Object.assign(params, { [constants.BROTLI_PARAM_NPOSTFIX]: 1, [constants.BROTLI_PARAM_NDIRECT]: 4 });
    return promisify(brotliCompress)(bytes, { params });
  },
  gzip: (bytes) => promisify(gzip)(bytes, { level: 9 }),
};

/** True if the file may be compressed; its responses then need Vary: Accept-Encoding. */
export const isCompressible = (file) => compressible.has(extname(file));

/**
 * The encoding for a request, 'br', 'gzip' or 'identity'.
 * @param {string} accepted the header Accept-Encoding
 */
export function chooseEncoding(accepted = '') {
  const qualities = new Map();
  for (const part of accepted.toLowerCase().split(',')) {
    const [name, ...parameters] = part.split(';').map((text) => text.trim());
    const quality = parameters.find((text) => text.startsWith('q='));
    if (name) qualities.set(name, quality === undefined ? 1 : Number(quality.slice(2)) || 0);
  }
  const accepts = (name) => (qualities.get(name) ?? qualities.get('*') ?? 0) > 0;
  return Object.keys(encodings).find(accepts) ?? 'identity';
}

/** Compressed bytes by encoding and content; several servers in one process share them. */
const compressed = new Map();

function compress(encoding, hash, plain) {
  const key = `${encoding} ${hash}`;
  if (!compressed.has(key)) compressed.set(key, encodings[encoding](plain));
  return compressed.get(key);
}

/** Keeps the bodies of files, and renews a body when its file has changed. */
export function createBodies() {
  const kept = new Map();

  async function make(file, encoding) {
    const plain = await readFile(file);
    const hash = createHash('sha256').update(plain).digest('base64url').slice(0, 22);
    if (encoding === 'identity') return { bytes: plain, encoding, etag: `"${hash}"` };
    // Each encoding has its own ETag, because a cache may keep several encodings.
    return { bytes: await compress(encoding, hash, plain), encoding, etag: `"${hash}-${encoding}"` };
  }

  /** @param {{ mtimeMs: number, size: number }} info of the file, as stat() gives it */
  return async function bodyOf(file, info, encoding) {
    const key = `${encoding} ${file}`;
    const stamp = `${info.mtimeMs} ${info.size}`;
    const found = kept.get(key);
    if (found?.stamp === stamp) return found.body;
    const body = make(file, encoding);
    kept.set(key, { stamp, body });
    body.catch(() => kept.delete(key));
    return body;
  };
}
