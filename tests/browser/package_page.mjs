// An empty page with the package's own modules, for tests of its workers.

import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { extname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { patientPage } from './harness.mjs';

const dist = fileURLToPath(new URL('../../bindings/dist/', import.meta.url));
const types = { '.js': 'text/javascript', '.mjs': 'text/javascript', '.wasm': 'application/wasm' };

/** Serves the package's own modules and an empty page, all with these headers. */
async function servePackage(headers) {
  const server = createServer(async ({ url }, response) => {
    const name = url.slice(1);
    const isPage = name === '' || name === 'favicon.ico';
    const body = isPage ? '<!doctype html><title>package</title>' : await readFile(dist + name).catch(() => null);
    response.writeHead(body === null ? 404 : 200, { 'content-type': types[extname(name)] ?? 'text/html', ...headers });
    response.end(body ?? '');
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const close = () => new Promise((resolve) => server.close(resolve));
  return { url: `http://127.0.0.1:${server.address().port}/`, close };
}

/** Headers of a page whose workers may share memory. */
export const isolated = {
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-embedder-policy': 'require-corp',
};

/** Runs a function in a page with these headers, and returns its result, or `{ error }`. */
export async function onPackagePage(browser, headers, run, ...args) {
  const server = await servePackage(headers);
  const context = await browser.createBrowserContext();
  try {
    const page = await patientPage(context);
    await page.goto(server.url);
    const failed = '(error) => JSON.stringify({ error: String(error) })';
    const given = args.map((each) => JSON.stringify(each)).join(', ');
    return JSON.parse(await page.evaluate(`(${run})(${given}).then(JSON.stringify, ${failed})`));
  } finally {
    await context.close();
    await server.close();
  }
}
