// Runs the browser tests in every browser found, in parallel, and writes build/test-results/browser.json:
//
//   node tests/browser/run.mjs [part of a test's name]...

import { mkdir, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { findBrowsers, whyTooOld } from './browsers.mjs';
import { compressAhead, resultFile, site, startServer } from './harness.mjs';
import { tests as accessibility } from './accessibility.tests.mjs';
import { tests as bend } from './bend.tests.mjs';
import { tests as generation } from './generation.tests.mjs';
import { tests as hosting } from './hosting.tests.mjs';
import { tests as firstLook } from './first_look.tests.mjs';
import { tests as maps } from './maps.tests.mjs';
import { tests as numbers } from './numbers.tests.mjs';
import { tests as ownModel } from './own_model.tests.mjs';
import { tests as packaged } from './package.tests.mjs';
import { tests as page } from './page.tests.mjs';
import { tests as policy } from './policy.tests.mjs';
import { tests as pool } from './pool.tests.mjs';
import { tests as print } from './print.tests.mjs';
import { tests as reveal } from './reveal.tests.mjs';
import { tests as robustness } from './robustness.tests.mjs';
import { tests as speed } from './speed.tests.mjs';
import { tests as state } from './state.tests.mjs';
import { tests as training } from './training.tests.mjs';
import { tests as trainingAccess } from './training_access.tests.mjs';
import { tests as steps } from './steps.tests.mjs';
import { tests as useIt } from './use_it.tests.mjs';

const tests = [
  ...page,
  ...firstLook,
  ...steps,
  ...state,
  ...numbers,
  ...maps,
  ...print,
  ...bend,
  ...reveal,
  ...training,
  ...trainingAccess,
  ...generation,
  ...ownModel,
  ...accessibility,
  ...robustness,
  ...policy,
  ...hosting,
  ...speed,
  ...useIt,
  ...packaged,
  ...pool,
];
const wanted = process.argv.length > 2 ? process.argv.slice(2) : [''];
/** Milliseconds for a test that states no limit. */
const usualLimit = 30_000;

async function withinLimit(promise, limit) {
  let timer;
  const late = new Promise((_, fail) => {
    timer = setTimeout(() => fail(new Error(`not done after ${limit / 1000} s`)), limit);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

async function runIn(found, outcome) {
  const say = (sign, name, note = '') => console.log(`${sign} ${name}${note && ` — ${note}`}`);
  const chosen = tests.filter(({ name }) => wanted.some((part) => `${found.name}: ${name}`.includes(part)));
  if (chosen.length === 0) return;
  const skipAll = (reason) => {
    for (const test of chosen) {
      const name = `${found.name}: ${test.name}`;
      outcome.skipped.push({ name, reason });
      say('–', name, reason);
    }
  };
  if (!found.launch) return skipAll(found.reason);
  const [browser, server] = await Promise.all([found.launch(), startServer()]);
  try {
    const tooOld = whyTooOld(found.name, await browser.version());
    if (tooOld) return skipAll(tooOld);
    for (const test of chosen) {
      const name = `${found.name}: ${test.name}`;
      const reason = test.skip?.(found.name);
      if (reason) {
        outcome.skipped.push({ name, reason });
        say('–', name, reason);
        continue;
      }
      const attempt = () =>
        withinLimit(test.run({ browser, kind: found.name, server, url: server.url }), test.limit ?? usualLimit);
      const start = performance.now();
      try {
        // A browser on a busy machine sometimes misses a moment, so try twice. A test that fails twice has found a
        // fault.
        const note = await attempt().catch(async (error) => {
          const second = await attempt();
          outcome.again.push(`${name}: ${error.message}`);
          return second;
        });
        outcome.passed += 1;
        say('✓', name, `${Math.round(performance.now() - start)} ms${note ? `, ${note}` : ''}`);
      } catch (error) {
        outcome.failed += 1;
        outcome.failures.push({ name, message: error.message });
        say('✗', name, error.stack);
      }
    }
  } finally {
    await browser.close();
    await server.close();
  }
}

await stat(join(site, 'index.html')).catch(() => {
  console.error('build/web is missing; build the page first: npm run build -w @multihead/web');
  process.exit(1);
});
await compressAhead();
const outcome = { passed: 0, failed: 0, again: [], skipped: [], failures: [] };
const start = performance.now();
await Promise.all(
  findBrowsers().map((found) =>
    runIn(found, outcome).catch((error) => {
      outcome.failed += 1;
      outcome.failures.push({ name: `${found.name}: start`, message: error.message });
      console.log(`✗ ${found.name}: start — ${error.stack}`);
    }),
  ),
);
const seconds = ((performance.now() - start) / 1000).toFixed(1);
for (const first of outcome.again) console.log(`the first attempt failed: ${first}`);
console.log(
  `${outcome.passed} passed, ${outcome.failed} failed, ${outcome.skipped.length} skipped, ${seconds} s`,
);
await mkdir(dirname(resultFile), { recursive: true });
await writeFile(resultFile, `${JSON.stringify(outcome, null, 2)}\n`);
process.exit(outcome.failed > 0 ? 1 : 0);
