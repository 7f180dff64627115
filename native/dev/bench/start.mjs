// Measures the time from import() to the first result on a page, per entry point. The code is bundled, minified and
// served from this machine. Each measurement uses a new browser context, so that files and compiled code are
// not cached.
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { rolldown } from 'rolldown';
import { ROOT } from '../build.mjs';

const PAGES = 15;
const DIST = join(ROOT, 'bindings', 'dist');
/** The entry point multihead/inline contains only simd128. */
const STARTS = [
  { name: 'start/multihead/threads:1', entry: 'index', wasm: 'multihead' },
  { name: 'start/multihead-core/threads:1', entry: 'core', wasm: 'multihead-core' },
  { name: 'start/multihead-inline/threads:1', entry: 'inline' },
];

/** The page's script. Its result is known: the first token sees only itself. */
const script = (entry, simd) => `
async function start() {
  const x = { shape: [1, 1, 2, 2], data: new Float32Array([1, 2, 3, 4]) };
  const begin = performance.now();
  const { load } = await import('./${entry}.js');
  const mh = await load({ simd: '${simd}' });
  const { data } = mh.attention(x, x, x, { causal: 'topLeft' }).out;
  const first = data[0];
  const milliseconds = performance.now() - begin;
  if (first !== 1) throw new Error('wrong numbers: ' + data);
  return milliseconds;
}
window.started = start();
`;

export const chosenStarts = ({ simd, filter }) => STARTS.filter(({ name, wasm }) => new RegExp(filter).test(name) && (wasm || simd === 'simd128'));

/** Writes a page per entry point into the site; `wasm` files lie next to their bundle. */
async function makePages(site, starts, simd) {
  const folder = join(site, 'start', simd);
  await mkdir(folder, { recursive: true });
  for (const { entry } of starts) {
    const bundle = await rolldown({ input: join(DIST, `${entry}.js`), logLevel: 'silent' });
    // Rewrites the address of a .wasm file: the bundle lies in another folder than the site's dist/.
    const relative = { name: 'wasm', renderChunk: (code) => code.replaceAll(/(["'`])\.\/(multihead-[\w-]+\.wasm)\1/g, '"../../dist/$2"') };
    await bundle.write({ file: join(folder, `${entry}.js`), format: 'esm', minify: true, plugins: [relative] });
    await bundle.close();
    await writeFile(join(folder, `${entry}.mjs`), script(entry, simd));
    await writeFile(join(folder, `${entry}.html`), `<!doctype html><title>${entry}</title><script type="module" src="${entry}.mjs"></script>`);
  }
}

async function timeOf(browser, url) {
  const context = await browser.createBrowserContext();
  try {
    const page = await context.newPage();
    await page.goto(url);
    return 1000 * (await page.evaluate(() => window.started));
  } finally {
    await context.close();
  }
}

/** @returns the benchmarks: `us` is the median of the page loads, `least_us` and `most_us` the extremes. */
export async function* startBenchmarks(browser, { site, url, simd, filter }) {
  const starts = chosenStarts({ simd, filter });
  await makePages(site, starts, simd);
  const samples = starts.map(() => []);
  // The first round fills the server's cache of compressed files.
  for (let round = 0; round <= PAGES; round += 1) {
    for (const [index, { entry }] of starts.entries()) {
      const us = await timeOf(browser, `${url}start/${simd}/${entry}.html`);
      if (round > 0) samples[index].push(us);
    }
  }
  for (const [index, { name }] of starts.entries()) {
    const sorted = samples[index].sort((a, b) => a - b);
    yield { name, us: sorted[sorted.length >> 1], least_us: sorted[0], most_us: sorted.at(-1), pages: sorted.length, peers: {} };
  }
}
