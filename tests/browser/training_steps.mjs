// Steps that the tests of "Train live" and "Generate" share.

import { eventually, openPage, settled, until } from './harness.mjs';

/** The script of "Generate" comes with the first model of patterns. */
export const generationReady = (page) => until(page, () => document.querySelector('#generate-go') !== null);

/** Opens the page at "Train live", with its workers started. */
export async function openTraining(browser, url, hash = '', options = {}) {
  const opened = await openPage(browser, `${url}${hash}`, { fresh: true, ...options });
  await opened.page.evaluate(() => document.querySelector('#train').scrollIntoView());
  await until(opened.page, () => window.multiheadPage.training().status === 'paused');
  if (hash.includes('train=induction')) await generationReady(opened.page);
  await settled(opened.page);
  return opened;
}

/** The training as the page shows it, without maps. As JSON, numbers keep every bit in both browsers' protocols. */
export async function trainingOf(page) {
  const text = await page.evaluate(() => {
    const view = window.multiheadPage.training();
    const { status, step, last, measured, muting, muted, moments, milliseconds, memory, message } = view;
    const curve = (each) => each && { settings: each.settings, losses: each.losses, accuracy: each.accuracy };
    const [run, smallerRun, earlier] = [view.curve, view.smallerRun, view.earlier].map(curve);
    const rest = { muting, muted, moments, milliseconds, memory, message };
    return JSON.stringify({ status, step, last, measured, run, smallerRun, earlier, ...rest });
  });
  return JSON.parse(text);
}

const rests = () => {
  const { status, measured } = window.multiheadPage.training();
  return status === 'paused' && measured !== undefined;
};
const smallerIsDone = () => {
  const { smallerRun, last } = window.multiheadPage.training();
  return !smallerRun || smallerRun.losses.length >= last;
};

/** Trains both models to the end. */
export async function trainToTheEnd(page) {
  await page.click('#train-go');
  await until(page, () => window.multiheadPage.training().step > 0);
  await until(page, rests);
  await until(page, smallerIsDone);
  return trainingOf(page);
}

/** The step that the model has reached, or twice the step of the smaller one if that is less. */
const reached = () => {
  const { last, smallerRun } = window.multiheadPage.training();
  return Math.min(last, smallerRun ? 2 * smallerRun.losses.length : Infinity);
};

/** Trains to step `least` or a few more, and the smaller model at least half as far. */
export async function trainFor(page, least) {
  await page.click('#train-go');
  await eventually(async () => (await page.evaluate(reached)) >= least, `step ${least} is reached`);
  await page.evaluate(() => {
    if (window.multiheadPage.training().status === 'running') document.querySelector('#train-go').click();
  });
  await until(page, rests);
  return trainingOf(page);
}

export const textOf = (page, selector) => page.$eval(selector, (element) => element.textContent);
