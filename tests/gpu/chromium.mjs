// A page in Chromium with WebGPU on SwiftShader, which computes with the processor: no machine of the tests needs a GPU.

import { createServer } from 'node:http';
import { readdir, readFile } from 'node:fs/promises';
import { extname, join, normalize, relative } from 'node:path';
import { rolldown } from 'rolldown';
import { ROOT } from '../../native/dev/build.mjs';
import { findChromium, launchWithGpu } from '../browser/browsers.mjs';

const types = { '.js': 'text/javascript', '.html': 'text/html', '.wasm': 'application/wasm', '.json': 'application/json' };
const fetched = { name: 'fetched files', resolveId: (id) => (id.startsWith('node:') ? join(ROOT, 'tests', 'gpu', 'fetched_files.mjs') : null) };

/** Why the page cannot be opened; undefined if it can. */
export const whyNoChromium = () => findChromium().reason;

/** Bundles page.mjs with the helpers of the package's tests that it imports. The package itself is loaded as it was built. */
async function scriptOf() {
  const bundle = await rolldown({
    input: join(ROOT, 'tests', 'gpu', 'page.mjs'),
    external: ['/dist/index.js', '/dist/models.js'],
    resolve: { extensionAlias: { '.js': ['.ts', '.js'] }, alias: { multihead: '/dist/index.js' } },
    plugins: [fetched],
    transform: { define: { 'process.env': '{}' } },
    logLevel: 'warn',
  });
  const { output } = await bundle.generate({ format: 'esm' });
  await bundle.close();
  return output[0].code;
}

/** Serves the page, the package in bindings/dist, and the golden cases in `folder`. */
async function startServer(script, folder) {
  const files = {
    '/': ['.html', '<!doctype html><title>multihead on a GPU</title><script type="module" src="/page.js"></script>'],
    '/page.js': ['.js', script],
  };
  const list = async (path, recursive) => {
    const entries = await readdir(path, { recursive, withFileTypes: true });
    return entries.map((entry) => ({ name: relative(path, join(entry.parentPath, entry.name)), folder: entry.isDirectory() }));
  };
  const server = createServer(async ({ url }, response) => {
    const { pathname, searchParams } = new URL(url, 'http://x');
    const path = normalize(pathname);
    try {
      const below = [
        ['/dist/', join(ROOT, 'bindings', 'dist')],
        ['/cases', folder],
        ['/kept', join(ROOT, 'tests', 'conformance', 'models', 'gpt2')],
      ].find(([start]) => path.startsWith(start));
      const onDisk = async () => {
        const file = join(below[1], path.slice(below[0].length));
        const kind = searchParams.get('list');
        return kind === null ? [extname(path), await readFile(file)] : ['.json', JSON.stringify(await list(file, kind === 'all'))];
      };
      const [extension, body] = files[path] ?? (await onDisk());
      response.setHeader('content-type', types[extension] ?? 'application/octet-stream');
      response.end(body);
    } catch {
      response.statusCode = 404;
      response.end();
    }
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return server;
}

/** Opens the page. `log` gets its lines. Returns `call`, which runs a function of page.mjs, and `close`. */
export async function openPage({ folder = join(ROOT, 'tests', 'conformance'), log = console.log } = {}) {
  const server = await startServer(await scriptOf(), folder);
  const launched = await launchWithGpu({ protocolTimeout: 3_600_000 }).catch((error) => {
    server.close();
    throw error;
  });
  const close = async () => {
    await launched.close();
    server.closeAllConnections();
    server.close();
  };
  try {
    const page = await launched.newPage();
    let failed = (_error) => {};
    const failure = new Promise((_, reject) => (failed = reject));
    page.on('pageerror', (error) => (log(`page: ${error.message}`), failed(error)));
    page.on('console', (message) => message.text().startsWith('Failed to load resource') || log(message.text()));
    await page.goto(`http://127.0.0.1:${server.address().port}/`);
    await Promise.race([failure, page.waitForFunction(() => globalThis.tests !== undefined, { timeout: 60_000 })]);
    failure.catch(() => {});
    const call = (name, ...given) => page.evaluate((called, values) => globalThis.tests[called](...values), name, given);
    return { call, close };
  } catch (error) {
    await close();
    throw error;
  }
}
