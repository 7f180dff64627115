// Runs the benchmarks in headless browsers, on a page that this module serves.
import { cp, mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { findBrowsers } from '../../../tests/browser/browsers.mjs';
import { serve } from '../../../web/serve.mjs';
import { ROOT } from '../build.mjs';
import { SetupError, say } from '../console.mjs';
import { startBenchmarks } from './start.mjs';

const SITE = join(ROOT, 'build', 'bench-page');
const at = (...path) => join(ROOT, ...path);

/** Copies the files that the page needs. The server offers no other files of the project. */
async function makeSite() {
  await rm(SITE, { recursive: true, force: true });
  await mkdir(SITE, { recursive: true });
  await cp(at('bindings', 'bench'), join(SITE, 'bench'), { recursive: true });
  await cp(at('bindings', 'dist'), join(SITE, 'dist'), { recursive: true });
}

/** Yields the page's events, one after the other. */
async function* eventsOf(launch, name, { simd, filter }) {
  await makeSite();
  // web/serve.mjs isolates the page from other origins. Without that, clocks have steps of 0.1 ms or more.
  const server = await serve({ root: SITE, port: 0 });
  const browser = await launch();
  try {
    const page = await browser.newPage();
    await page.goto(`${server.url}/bench/page.html?${new URLSearchParams({ simd, filter })}`);
    for (;;) {
      const text = await page.evaluate(() => window.nextEvent().then((event) => JSON.stringify(event)));
      const event = JSON.parse(text);
      if (event.done) break;
      if (event.error) return say(`\n${name} ${simd}: ${event.error}`); // a browser without relaxed SIMD, for example
      if (!event.machine) yield event;
      else yield { machine: { runner: name, engine: await browser.version(), ...event.machine } };
    }
    for await (const benchmark of startBenchmarks(browser, { site: SITE, url: server.url, simd, filter })) yield { benchmark };
  } finally {
    await browser.close();
    await server.close();
  }
}

/** One run per requested browser and build. */
export function browserRuns(options) {
  const wanted = findBrowsers().filter(({ name }) => options.browser === 'both' || options.browser === name);
  return wanted.flatMap(({ name, launch, reason }) => {
    if (launch) return options.builds.map((simd) => eventsOf(launch, name, { ...options, simd }));
    if (options.browser !== 'both') throw new SetupError(reason);
    say(`  ${reason}`);
    return [];
  });
}
