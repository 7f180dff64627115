// A slow connection to a server on this machine.
import { connect, createServer } from 'node:net';

const closing = (server) => () => new Promise((done) => server.close(done));

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
