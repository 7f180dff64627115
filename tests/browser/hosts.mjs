// Hosts other than `npm start`: a plain file server below a path, and a slow connection.

import { readFile } from 'node:fs/promises';
import { createServer as createHttpServer } from 'node:http';
import { connect, createServer } from 'node:net';
import { extname, join } from 'node:path';
import { site } from './harness.mjs';

const types = { '.css': 'text/css', '.html': 'text/html', '.js': 'text/javascript', '.svg': 'image/svg+xml' };

/** Serves a folder below `prefix`, and nothing elsewhere. Like the simplest servers, sends no header but the type. */
export async function startPlainServer(prefix, root = site) {
  const requested = [];
  const server = createHttpServer(async ({ url }, response) => {
    requested.push(url);
    const path = url.split('?')[0];
    const file = path.startsWith(prefix) ? path.slice(prefix.length) || 'index.html' : undefined;
    const body = file === undefined ? null : await readFile(join(root, file)).catch(() => null);
    const type = types[extname(file ?? '')];
    response.writeHead(body === null ? 404 : 200, type ? { 'content-type': type } : {});
    response.end(body ?? '');
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  return { url: `http://localhost:${server.address().port}${prefix}`, requested, close: closing(server) };
}

const closing = (server) => () =>
  new Promise((done) => {
    server.close(done);
    server.closeAllConnections?.();
  });

const tick = 4;

/**
 * A slow connection to the server at `port`: each new connection and each request takes `delay` ms longer, and all
 * connections share `bitsPerSecond` towards the browser, in turns.
 */
export async function startSlowLine(port, { bitsPerSecond, delay }) {
  const lines = new Set();
  const sockets = new Set();
  let last = performance.now();
  let credit = 0;
  const timer = setInterval(() => {
    const now = performance.now();
    const busy = [...lines].filter(({ waiting }) => waiting.length > 0);
    const share = ((bitsPerSecond / 8) * (now - last)) / 1000;
    credit = busy.length > 0 ? credit + share : 0;
    last = now;
    while (credit > 0 && busy.some(({ waiting }) => waiting.length > 0)) {
      for (const { waiting, browser } of busy) {
        const part = waiting.shift();
        if (!part) continue;
        credit -= part.length;
        if (!browser.destroyed) browser.write(part);
      }
    }
  }, tick);
  const server = createServer((browser) => {
    const line = { waiting: [], browser };
    lines.add(line);
    const upstream = connect(port, '127.0.0.1');
    for (const socket of [browser, upstream]) {
      sockets.add(socket);
      socket.on('error', () => undefined);
      socket.on('close', () => {
        browser.destroy();
        upstream.destroy();
        lines.delete(line);
      });
    }
    const opened = performance.now() + delay;
    browser.on('data', (data) => {
      setTimeout(() => upstream.destroyed || upstream.write(data), Math.max(0, opened - performance.now()) + delay);
    });
    upstream.on('data', (data) => {
      // Send pieces of the size of a packet, so that connections share the line fairly.
      for (let at = 0; at < data.length; at += 1460) line.waiting.push(data.subarray(at, at + 1460));
    });
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  return {
    url: `http://localhost:${server.address().port}/`,
    close: async () => {
      clearInterval(timer);
      for (const socket of sockets) socket.destroy();
      await closing(server)();
    },
  };
}
