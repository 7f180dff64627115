// A small static file server for the built page, in plain Node. It sends the compressed files that the build has written.
//
//   node web/serve.mjs [folder]      PORT and HOST from the environment

import { realpath, stat } from 'node:fs/promises';
import { createServer } from 'node:http';
import { extname, join, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { chooseEncoding, createBodies, isCompressible } from './encoded.mjs';

/**
 * The page's security policy. Scripts start only from addresses that a policy "multihead" gives: that of the page
 * (web/src/own_scripts.ts), and those of two workers that start others (web/src/speed/contenders.ts, web/src/model_worker.ts).
 */
export const policyInPage = [
  "default-src 'self'",
  "script-src 'self' 'wasm-unsafe-eval'",
  "worker-src 'self'",
  "style-src 'self'",
  "object-src 'none'",
  "base-uri 'none'",
  "require-trusted-types-for 'script'",
  'trusted-types multihead',
].join('; ');

/** policyInPage for the header. Only a header can forbid other pages to show this one in a frame. */
export const contentSecurityPolicy = `${policyInPage}; frame-ancestors 'none'`;

/** A scene of the story alone, for slides and pages of others: it holds nothing that a click could give away. */
function isFramed(url) {
  const query = new URLSearchParams(url.split('?', 2)[1]);
  return query.has('scene') && query.get('embed') === '1';
}
const framedPolicy = { 'Content-Security-Policy': policyInPage, 'Cross-Origin-Resource-Policy': 'cross-origin' };

const defaultRoot = fileURLToPath(new URL('../build/web', import.meta.url));

/** Scripts and style sheets of a page in UTF-8 are read as UTF-8, and so is JSON. */
const types = {
  '.css': 'text/css',
  '.html': 'text/html; charset=utf-8',
  '.ico': 'image/x-icon',
  '.js': 'text/javascript',
  '.json': 'application/json',
  '.map': 'application/json',
  '.mjs': 'text/javascript',
  '.png': 'image/png',
  '.svg': 'image/svg+xml',
  '.txt': 'text/plain; charset=utf-8',
  '.wasm': 'application/wasm',
  '.webmanifest': 'application/manifest+json',
};

/** Headers that every answer has. */
const headers = {
  'Cross-Origin-Resource-Policy': 'same-origin',
  'X-Content-Type-Options': 'nosniff',
};

const embedder = { 'Cross-Origin-Embedder-Policy': 'require-corp' };

/** Headers that only documents and workers need, because browsers ignore them elsewhere. */
const governing = {
  ...embedder,
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Referrer-Policy': 'no-referrer',
};

/** The file for a request's URL; undefined if there is no such file inside `root`. */
async function locate(root, url) {
  let path;
  try {
    path = decodeURIComponent(url.split(/[?#]/, 1)[0]);
  } catch {
    return undefined;
  }
  if (path.includes('\0')) return undefined;
  const wanted = resolve(root, `.${path}`);
  try {
    // realpath() resolves symbolic links, so that none can lead outside the folder.
    let file = await realpath(wanted);
    if ((await stat(file)).isDirectory()) file = await realpath(join(file, 'index.html'));
    const info = await stat(file);
    if (!info.isFile() || !file.startsWith(root + sep)) return undefined;
    return { file, info };
  } catch {
    return undefined;
  }
}

/** Answers with a text, which is a document for somebody who opens the address. */
function refuse(response, status, text, extra = {}) {
  const policies = { ...governing, 'Content-Security-Policy': contentSecurityPolicy };
  response.writeHead(status, { ...headers, ...policies, 'Content-Type': 'text/plain; charset=utf-8', ...extra });
  response.end(`${text}\n`);
}

/** The guides and references have styles and scripts in their pages, and neither numbers nor state of a visitor. */
const policyOfDocs = "default-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; base-uri 'none'; frame-ancestors 'self'";

/**
 * The policies for a document or a worker: these headers are longer than some files. A script of another name starts as no
 * worker, because the page's policy gives no address of it.
 */
function policiesFor(root, file, url) {
  // WebKit starts a worker only if each module that it imports has this header.
  if (!/(\.html|\.mjs|worker[^/\\]*\.js)$/.test(file)) return file.endsWith('.js') ? embedder : {};
  const inDocs = file.startsWith(join(root, 'docs') + sep);
  const policies = { ...governing, 'Content-Security-Policy': inDocs ? policyOfDocs : contentSecurityPolicy };
  return file === join(root, 'index.html') && isFramed(url) ? { ...policies, ...framedPolicy } : policies;
}

/** Whether the client's copy, named by If-None-Match, is still good. */
const isFresh = (header, etag) => header?.trim() === '*' || (header ?? '').split(',').some((tag) => tag.trim().replace(/^W\//, '') === etag);

async function answer(root, bodyOf, request, response) {
  if (request.method !== 'GET' && request.method !== 'HEAD') {
    refuse(response, 405, 'Only GET and HEAD', { Allow: 'GET, HEAD' });
    return;
  }
  const found = await locate(root, request.url ?? '/');
  if (found === undefined) {
    refuse(response, 404, 'Not found');
    return;
  }
  const { file, info } = found;
  const compressible = isCompressible(file);
  // A range counts bytes of the file itself, and a server may always answer with the whole of it.
  const plain = !compressible || request.headers.range !== undefined;
  const encoding = plain ? 'identity' : chooseEncoding(request.headers['accept-encoding']);
  const { bytes, etag } = await bodyOf(file, info, encoding);
  // Names under assets/ carry a hash of their content.
  const hashed = file.includes(`${sep}assets${sep}`);
  const caching = {
    ...headers,
    ...policiesFor(root, file, request.url),
    'Cache-Control': hashed ? 'public, max-age=31536000, immutable' : 'no-cache',
    ETag: etag,
    ...(compressible && { Vary: 'Accept-Encoding' }),
  };
  if (isFresh(request.headers['if-none-match'], etag)) {
    response.writeHead(304, caching);
    response.end();
    return;
  }
  // HTTP/1.1 keeps a connection without being told: two headers of 47 bytes.
  response.removeHeader('Connection');
  response.writeHead(200, {
    ...caching,
    'Content-Type': types[extname(file)] ?? 'application/octet-stream',
    'Content-Length': bytes.length,
    ...(encoding !== 'identity' && { 'Content-Encoding': encoding }),
  });
  response.end(request.method === 'HEAD' ? undefined : bytes);
}

/** Listens on the first free port from `wished` to `wished` + 20. */
async function listen(server, wished, host) {
  for (let port = wished; ; port += 1) {
    try {
      await new Promise((done, fail) => {
        server.once('error', fail);
        server.listen(port, host, () => {
          server.off('error', fail);
          done();
        });
      });
      return server.address().port;
    } catch (error) {
      if (error.code !== 'EADDRINUSE' || port >= Math.min(wished + 20, 65535)) throw error;
    }
  }
}

/**
 * Serves a folder. `arrival` returns a promise if the file of a path is still being built. The answer waits for it; if it
 * fails, the answer is 503.
 */
export async function serve({ root = defaultRoot, port = 8080, host = '127.0.0.1', arrival = () => undefined } = {}) {
  const folder = await realpath(root).catch(() => {
    throw new Error(`${root} does not exist; build the page first (npm run build)`);
  });
  const bodyOf = createBodies();
  const server = createServer((request, response) => {
    const path = (request.url ?? '/').split('?', 1)[0];
    Promise.resolve(arrival(path)).then(
      () => answer(folder, bodyOf, request, response).catch(() => response.destroy()),
      (error) => refuse(response, 503, error.message),
    );
  });
  const taken = await listen(server, port, host);
  const shown = host.includes(':') ? `[${host}]` : host;
  return {
    server,
    port: taken,
    host,
    url: `http://${shown === '127.0.0.1' ? 'localhost' : shown}:${taken}/`,
    close: () =>
      new Promise((done) => {
        server.close(() => done());
        server.closeAllConnections();
      }),
  };
}

/** The port and host from the environment variables PORT and HOST, or the defaults. */
export function wishedAddress() {
  const port = Number(process.env.PORT || 8080);
  if (!Number.isInteger(port) || port < 0 || port > 65535) {
    throw new Error(`PORT must be a number from 0 to 65535, not "${process.env.PORT}"`);
  }
  return { port, host: process.env.HOST || '127.0.0.1' };
}

if (process.argv[1] && resolve(process.argv[1]) === fileURLToPath(import.meta.url)) {
  try {
    const root = process.argv[2] ? resolve(process.argv[2]) : defaultRoot;
    const { url } = await serve({ root, ...wishedAddress() });
    console.log(`multihead is at ${url}  (Ctrl-C stops it)`);
  } catch (error) {
    console.error(error.message);
    process.exit(1);
  }
}
