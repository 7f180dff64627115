// Runs the browser tests in Chromium and Firefox, each started twice or more, and writes build/test-results/browser.json:
//
//   node tests/browser/run.mjs [--numbers | --quick | --webkit] [part of a test's name]...
//
// --numbers: the tests that compare numbers on the page with a reference; writes browser-numbers.json. --quick: all others, without those that are
// marked as thorough, which take long and rarely find a fault that the others miss. With both, chromium-headless-shell
// takes Chromium's place, if there is one. --webkit: those that are marked as essential, in WebKit, the engine of Safari;
// writes webkit.json. Without an option, Chromium runs the essential tests, its headless
// shell, if there is one, all others, and Firefox those in which engines differ.

import { mkdir, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { attempted } from './attempts.mjs';
import { findBrowsers, findEssentialBrowser, whyTooOld } from './browsers.mjs';
import { PATIENCE, forgetPage, results, sharePage, site, startServer } from './harness.mjs';
import { tests as accessibility } from './accessibility.tests.mjs';
import { tests as bar } from './bar.tests.mjs';
import { tests as bend } from './bend.tests.mjs';
import { tests as generation } from './generation.tests.mjs';
import { tests as heads } from './heads.tests.mjs';
import { tests as hosting } from './hosting.tests.mjs';
import { tests as firstLook } from './first_look.tests.mjs';
import { tests as laboratory } from './laboratory.tests.mjs';
import { tests as maps } from './maps.tests.mjs';
import { tests as modelGpu } from './model_gpu.tests.mjs';
import { tests as modelWorkers } from './model_workers.tests.mjs';
import { tests as monkey } from './monkey.tests.mjs';
import { tests as numbers } from './numbers.tests.mjs';
import { tests as ownModel } from './own_model.tests.mjs';
import { tests as packaged } from './package.tests.mjs';
import { tests as page } from './page.tests.mjs';
import { tests as policy } from './policy.tests.mjs';
import { tests as pool } from './pool.tests.mjs';
import { tests as print } from './print.tests.mjs';
import { tests as robustness } from './robustness.tests.mjs';
import { tests as speed } from './speed.tests.mjs';
import { tests as state } from './state.tests.mjs';
import { tests as story } from './story.tests.mjs';
import { tests as training } from './training.tests.mjs';
import { tests as trainingAccess } from './training_access.tests.mjs';
import { tests as steps } from './steps.tests.mjs';
import { tests as useIt } from './use_it.tests.mjs';

const tests = [
  ...monkey, // at the end, one browser would be left alone with it
  ...page,
  ...firstLook,
  ...bar,
  ...steps,
  ...state,
  ...numbers,
  ...maps,
  ...print,
  ...bend,
  ...training,
  ...trainingAccess,
  ...generation,
  ...ownModel,
  ...laboratory,
  ...heads,
  ...accessibility,
  ...robustness,
  ...policy,
  ...hosting,
  ...speed,
  ...story,
  ...useIt,
  ...packaged,
  ...pool,
  ...modelWorkers,
  ...modelGpu,
];
/**
 * Tests of layout, keyboard, printing, policies, caches, workers and numbers, in which engines differ. Firefox runs
 * these and the essential tests; the page's own logic is the same in every engine.
 */
const byEngine = new Set([accessibility, bar, firstLook, hosting, modelWorkers, numbers, packaged, policy, pool, print].flat());
const [option, ...names] = process.argv.slice(2);
const groups = {
  '--numbers': numbers,
  '--quick': tests.filter((test) => !numbers.includes(test) && !test.thorough),
  '--webkit': tests.filter((test) => test.essential),
};
const group = groups[option] ?? tests;
const inShell = option === '--numbers' || option === '--quick';
const wanted = groups[option] ? names : process.argv.slice(2);
if (!wanted.length) wanted.push('');

/** Milliseconds after which a test counts as hung: a test waits several times, each time for at most PATIENCE. */
const LIMIT = 3 * PATIENCE;

async function withinLimit(promise) {
  let timer;
  const late = new Promise((_, fail) => {
    timer = setTimeout(() => fail(new Error(`not done after ${LIMIT / 1000} s`)), LIMIT);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

const say = (sign, name, note = '') => console.log(`${sign} ${name}${note && ` — ${note}`}`);

/** Runs tests in a browser of its own until none is left. */
async function runLane(found, left, outcome) {
  const [browser, server] = await Promise.all([found.launch(), startServer()]);
  const skip = (test, reason) => {
    const name = `${found.name}: ${test.name}`;
    outcome.skipped.push({ name, reason });
    say('–', name, reason);
  };
  try {
    if (found.name !== 'webkit') sharePage(browser, server.url);
    const tooOld = whyTooOld(found.name, await browser.version());
    for (let test = left.shift(); test; test = left.shift()) {
      const reason = tooOld || test.skip?.(found.name);
      if (reason) {
        skip(test, reason);
        continue;
      }
      await runTest(test, { browser, kind: found.name, server, url: server.url }, outcome);
    }
  } finally {
    await browser.close();
    await server.close();
  }
}

async function runTest(test, on, outcome) {
  const name = `${on.kind}: ${test.name}`;
  const start = performance.now();
  try {
    const { note, again } = await attempted(test, on.kind, () => withinLimit(test.run(on)));
    if (again) outcome.again.push(`${name}: ${again}`);
    outcome.passed += 1;
    say('✓', name, `${Math.round(performance.now() - start)} ms${note ? `, ${note}` : ''}`);
  } catch (error) {
    forgetPage(on.browser);
    outcome.failed += 1;
    outcome.failures.push({ name, message: error.message });
    say('✗', name, error.stack);
  }
}

/**
 * Several browsers share the tests, because a test waits part of its time. Two of the headless shell leave a fifth of two
 * cores idle, so there are three.
 */
const LANES = inShell ? 3 : 2;

async function runIn(found, outcome) {
  const here = found.name === 'firefox' ? group.filter((test) => test.essential || byEngine.has(test)) : group;
  const left = here.filter(({ name }) => wanted.some((part) => `${found.name}: ${name}`.includes(part)));
  if (left.length === 0) return;
  if (found.launch) {
    // The headless shell takes 0.8 of Chromium's processor time for all tests, and is the same engine.
    const shell = found.name === 'chromium' && !inShell && findBrowsers({ inShell: true }).find(({ name, launch }) => name === found.name && launch);
    const inChromium = shell ? left.filter(({ essential }) => essential) : left;
    const inItsShell = left.filter((test) => !inChromium.includes(test));
    const lane = async () => {
      if (inChromium.length > 0) await runLane(found, inChromium, outcome);
      if (inItsShell.length > 0) await runLane(shell, inItsShell, outcome);
    };
    await Promise.all(Array.from({ length: LANES }, lane));
    return;
  }
  for (const { name } of left) {
    outcome.skipped.push({ name: `${found.name}: ${name}`, reason: found.reason });
    say('–', `${found.name}: ${name}`, found.reason);
  }
}

await stat(join(site, 'index.html')).catch(() => {
  console.error('build/web is missing; build the page first: npm run build -w @multihead/web');
  process.exit(1);
});
const outcome = { passed: 0, failed: 0, again: [], skipped: [], failures: [] };
const start = performance.now();
const inWebKit = option === '--webkit';
await Promise.all(
  (inWebKit ? [findEssentialBrowser()] : findBrowsers({ inShell })).map((found) =>
    runIn(found, outcome).catch((error) => {
      outcome.failed += 1;
      outcome.failures.push({ name: `${found.name}: start`, message: error.message });
      console.log(`✗ ${found.name}: start — ${error.stack}`);
    }),
  ),
);
const seconds = ((performance.now() - start) / 1000).toFixed(1);
for (const first of outcome.again) console.log(`the first attempt failed: ${first}`);
console.log(`${outcome.passed} passed, ${outcome.failed} failed, ${outcome.skipped.length} skipped, ${seconds} s`);
await mkdir(results, { recursive: true });
const file = { '--numbers': 'browser-numbers.json', '--webkit': 'webkit.json' }[option] ?? 'browser.json';
await writeFile(join(results, file), `${JSON.stringify(outcome, null, 2)}\n`);
process.exit(outcome.failed > 0 ? 1 : 0);
