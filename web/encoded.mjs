// Compressed files: the build writes them next to the files of the page, and the server sends them.

import { createHash } from 'node:crypto';
import { readFile, readdir, writeFile } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { promisify } from 'node:util';
import { brotliCompress, brotliDecompress, constants, gunzip, gzip } from 'node:zlib';

const compressible = new Set(['.css', '.html', '.js', '.json', '.map', '.mjs', '.svg', '.txt', '.wasm', '.webmanifest']);

const isWasm = (bytes) => bytes.subarray(0, 4).equals(Buffer.from('\0asm'));

/**
 * Encodings, preferred first. Brotli's quality 11 takes 0.8 s for the module's wasm and saves a tenth, of scripts a twentieth:
 * that is for the build. For the peers' wasm it would take a minute.
 */
const encodings = {
  br: {
    suffix: '.br',
    unpack: promisify(brotliDecompress),
    pack(bytes, inBuild) {
      const params = { [constants.BROTLI_PARAM_QUALITY]: inBuild && bytes.length < 1e6 ? 11 : 5 };
      // Distances in WebAssembly are often even: 0.17 % fewer bytes. Scripts would have more.
      if (isWasm(bytes)) Object.assign(params, { [constants.BROTLI_PARAM_NPOSTFIX]: 1, [constants.BROTLI_PARAM_NDIRECT]: 4 });
      return promisify(brotliCompress)(bytes, { params });
    },
  },
  gzip: {
    suffix: '.gz',
    unpack: promisify(gunzip),
    pack: (bytes, inBuild) => promisify(gzip)(bytes, { level: inBuild ? 9 : 6 }),
  },
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

/** Writes each file of a folder that may be compressed once more in every encoding, unless the result is larger. */
export async function compressFolder(folder) {
  const names = (await readdir(folder, { recursive: true })).filter(isCompressible);
  await Promise.all(
    names.map(async (name) => {
      const plain = await readFile(join(folder, name));
      for (const { suffix, pack } of Object.values(encodings)) {
        const bytes = await pack(plain, true);
        if (bytes.length < plain.length) await writeFile(join(folder, name + suffix), bytes);
      }
    }),
  );
}

/** The compressed file that the build has written; packed here if there is none, or if it holds another state of the file. */
async function compress(file, plain, encoding) {
  const { suffix, pack, unpack } = encodings[encoding];
  try {
    const bytes = await readFile(file + suffix);
    if (plain.equals(await unpack(bytes))) return bytes;
  } catch {
    // There is none, or it is broken.
  }
  return pack(plain, false);
}

/** Keeps the bodies of files, and renews a body when its file has changed. */
export function createBodies() {
  const kept = new Map();

  async function make(file, encoding) {
    const plain = await readFile(file);
    const hash = createHash('sha256').update(plain).digest('base64url').slice(0, 22);
    if (encoding === 'identity') return { bytes: plain, encoding, etag: `"${hash}"` };
    // Each encoding has its own ETag, because a cache may keep several encodings.
    return { bytes: await compress(file, plain, encoding), encoding, etag: `"${hash}-${encoding}"` };
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
