// Measures what visitors of the page wait for: the first heat map, and the longest task of the main thread while they
// point, type and train. The tests count the work behind these times.
import { findBrowsers } from '../../../tests/browser/browsers.mjs';
import { openPage, startServer, until } from '../../../tests/browser/harness.mjs';
import { large, sweep } from '../../../tests/browser/maps.tests.mjs';
import { moveOverAll } from '../../../tests/browser/steps.tests.mjs';
import { openTraining, trainToTheEnd } from '../../../tests/browser/training_steps.mjs';
import { say } from '../console.mjs';
import { startSlowLine } from './slow_line.mjs';
import { watchTasks } from './tasks.mjs';

const SAMPLES = 5;

/** Milliseconds from the start of the page to its first heat map. */
async function firstHeatMap(browser, url) {
  const { page, close } = await openPage(browser, url);
  const shown = await page.evaluate(() => performance.getEntriesByName('numbers shown')[0].startTime);
  await close();
  return shown;
}

/** The longest task of the main thread, in milliseconds of the processor, while `work` is done. */
async function longestTask(page, work) {
  const longest = await watchTasks(page);
  await work();
  return longest();
}

async function onPage({ browser, url, hash = large, open = openPage }, measure) {
  const { page, close } = await open(browser, url + hash);
  const result = await measure(page);
  await close();
  return result;
}

/** Types letters as fast as people do; what is not on the screen waits until the end. */
async function typeLetters(page) {
  await page.focus('#sentence');
  await page.keyboard.type('x'.repeat(8), { delay: 80 });
}

/** Switches between hand-built heads and heads trained here, and waits until all sections have followed. */
async function switchHeads(page) {
  for (const source of ['trained', 'rules', 'trained']) {
    await page.$eval(`#source-${source}`, (button) => button.click());
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

/** The longest task while the heads are switched, after one step of training. */
async function longestOfSwitch(page) {
  await page.click('#train-step');
  await until(page, () => window.multiheadPage.training().measured !== undefined && window.multiheadPage.training().step === 1);
  await page.evaluate(() => scrollTo(0, 0));
  return longestTask(page, () => switchHeads(page));
}

/** The longest task of a whole training whose heads the first screen shows. */
async function longestOfShownTraining(page) {
  await longestOfSwitch(page);
  return longestTask(page, async () => {
    await page.$eval('#train-go', (button) => button.click());
    await until(page, () => window.multiheadPage.training().step > 1);
    await until(page, () => window.multiheadPage.training().status === 'paused');
  });
}

/** Presses the button for training, and after ten steps again. @returns milliseconds until the training rests */
const pauseTraining = (page) =>
  page.evaluate(async () => {
    const { training } = window.multiheadPage;
    const turn = () => new Promise((resolve) => setTimeout(resolve));
    const button = document.querySelector('#train-go');
    button.click();
    while (training().last < 10) await turn();
    const asked = performance.now();
    button.click();
    while (training().status === 'running') await turn();
    return performance.now() - asked;
  });

const trains = { open: (browser, url) => openTraining(browser, url), hash: '' };
const BENCHMARKS = [
  { name: 'page/first heat map', measure: ({ browser, url }) => firstHeatMap(browser, url) },
  { name: 'page/first heat map, 1.6 Mbit/s and 150 ms delay', measure: ({ browser, slow }) => firstHeatMap(browser, slow) },
  { name: 'page/pause of training', measure: (on) => onPage({ ...on, ...trains }, pauseTraining) },
  // Only Chromium reports the tasks of the main thread.
  ...[
    ['pointing at a map', (page) => sweep(page, 32)],
    ['pointing at words, steps and maps', (page) => moveOverAll(page)],
    ['typing', typeLetters],
  ].map(([name, work]) => ({
    name: `page/longest task, ${name}, 64 tokens and 8 heads`,
    only: 'chromium',
    measure: (on) => onPage(on, (page) => longestTask(page, () => work(page))),
  })),
  {
    name: 'page/longest task, switching the heads',
    only: 'chromium',
    measure: (on) => onPage({ ...on, ...trains }, longestOfSwitch),
  },
  {
    name: 'page/longest task, training, while the first screen shows its heads',
    only: 'chromium',
    samples: 1,
    measure: (on) => onPage({ ...on, ...trains }, longestOfShownTraining),
  },
  {
    name: 'page/longest task, training',
    only: 'chromium',
    samples: 1,
    measure: (on) => onPage({ ...on, ...trains }, (page) => longestTask(page, () => trainToTheEnd(page))),
  },
];

/** Prints the median, the least and the most milliseconds of each benchmark whose name matches. */
export async function printPageBenchmarks({ browser: wanted, filter }) {
  const server = await startServer();
  const line = await startSlowLine(server.port, { bitsPerSecond: 1.6e6, delay: 150 });
  try {
    for (const { name, launch, reason } of findBrowsers()) {
      if (wanted !== 'both' && wanted !== name) continue;
      say(`\n${name}: ${launch ? 'milliseconds, median (least to most)' : reason}`);
      if (launch) await printIn(await launch(), { kind: name, filter, url: server.url, slow: line.url });
    }
  } finally {
    await line.close();
    await server.close();
  }
}

async function printIn(browser, { kind, filter, ...urls }) {
  try {
    for (const { name, only, samples = SAMPLES, measure } of BENCHMARKS) {
      if ((only && only !== kind) || !new RegExp(filter).test(name)) continue;
      const times = [];
      for (let i = 0; i < samples; i += 1) times.push(await measure({ browser, ...urls }));
      times.sort((a, b) => a - b);
      const [median, least, most] = [times[samples >> 1], times[0], times.at(-1)].map((time) => time.toFixed(1));
      say(`${name.padEnd(72)} ${median.padStart(8)} (${least} to ${most})`);
    }
  } finally {
    await browser.close();
  }
}
