// Hosts other than `npm start`: a plain file server below a path, and one that counts rounds of requests.

import { readFile } from 'node:fs/promises';
import { createServer as createHttpServer } from 'node:http';
import { extname, join } from 'node:path';
import { site, startServer } from './harness.mjs';

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

/**
 * Serves the site in rounds of requests: holds every answer until no request has come for half a second, then gives all
 * of them. `rounds` has the requests of each round: on a slow line a page needs at least one delay for each.
 */
export async function startRounds() {
  const { server: inner, ...site } = await startServer();
  const rounds = [];
  const held = [];
  let timer;
  const release = () => {
    rounds.push(held.map(({ path }) => path));
    for (const { answer } of held.splice(0)) answer();
  };
  const server = createHttpServer((request, response) => {
    clearTimeout(timer);
    timer = setTimeout(release, 500);
    held.push({ path: request.url, answer: () => inner.emit('request', request, response) });
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  return {
    url: `http://localhost:${server.address().port}/`,
    rounds,
    close: async () => {
      clearTimeout(timer);
      await closing(server)();
      await site.close();
    },
  };
}
