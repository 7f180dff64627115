// The page on paper: as printed, and as the PDF that Chromium makes of it.

import assert from 'node:assert/strict';
import { inflateSync } from 'node:zlib';
import { eventually, openPage, snapshot, until } from './harness.mjs';
import { large } from './maps.tests.mjs';

/**
 * Counts the letters on the pages of a PDF, with two bytes per letter. Forms do not count, because they hold the
 * letters that something masks.
 */
function lettersIn(file) {
  const text = file.toString('latin1');
  let count = 0;
  for (const { index, 0: start } of text.matchAll(/stream\r?\n/g)) {
    const isForm = text.slice(text.lastIndexOf(' obj', index), index).includes('/Form');
    if (isForm || text.slice(index - 3, index) === 'end') continue;
    const begin = index + start.length;
    const bytes = file.subarray(begin, text.indexOf('endstream', begin));
    try {
      const commands = inflateSync(bytes).toString('latin1');
      for (const [, hex] of commands.matchAll(/<([0-9A-Fa-f]+)>\s*T[jJ]/g)) count += hex.length / 4;
    } catch {
      // The stream is not compressed, so it is not the content of a page.
    }
  }
  return count;
}

export const tests = [
  {
    name: 'on paper, maps are light and tables whole, also from the dark theme',
    skip: (kind) => (kind === 'firefox' ? 'Firefox cannot emulate printing' : undefined),
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`, { scheme: 'dark' });
      // Find a cell without weight, as a share of the canvas: on paper the canvas is smaller, but its cells keep their
      // places.
      const cell = await page.$eval('#live-map .map-stage', (stage) => {
        const { left, top, width, height } = stage.querySelector('canvas').getBoundingClientRect();
        const { right, bottom } = stage.querySelector('.map-row').getBoundingClientRect();
        return [(right - left - 8) / width, (bottom - top - 8) / height];
      });
      const corner = () =>
        page.$eval(
          '#live-map canvas',
          (canvas, [x, y]) => {
            const pen = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
            pen.drawImage(canvas, Math.round(x * canvas.width), Math.round(y * canvas.height), 1, 1, 0, 0, 1, 1);
            return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
          },
          cell,
        );
      assert.ok(Math.max(...(await corner())) < 90, 'dark on the screen');
      await page.emulateMediaType('print');
      await until(page, () => matchMedia('print').matches);
      await eventually(async () => Math.min(...(await corner())) > 200, 'light on paper');
      await page.emulateMediaType();
      await page.evaluate((text) => (location.hash = text), `${large}&step=softmax&stepView=numbers`);
      await snapshot(page);
      await page.emulateMediaType('print');
      await until(page, () => document.querySelectorAll('#step-detail .table-scroll tbody td').length === 64 * 64);
      await close();
    },
  },
  {
    name: 'on paper, every map fits its column, and what can only be pressed is left out',
    skip: (kind) => (kind === 'firefox' ? 'Firefox cannot emulate printing' : undefined),
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#causal=1`, { scheme: 'dark' });
      await page.evaluate(() => document.querySelector('#train').scrollIntoView());
      await until(page, () => window.multiheadPage.training().status === 'paused');
      await page.emulateMediaType('print');
      await until(page, () => matchMedia('print').matches);
      await page.$eval('.origin details', (details) => (details.open = true));
      // Make the page as wide as the paper. The maps keep their size on the screen, because nothing draws them again.
      const seen = await page.evaluate(() => {
        document.body.style.width = '718px';
        const shown = (selector) => [...document.querySelectorAll(selector)].filter((element) => element.checkVisibility());
        const wide = shown('.map-stage, .map canvas').filter((element) => {
          const outer = element.closest('.map').parentElement.getBoundingClientRect();
          return element.getBoundingClientRect().right > outer.right + 1;
        });
        const pressed = '.token, .strip-head, .card-title, .head-button, .live-title, .step, [aria-pressed=true], .mutes *';
        const buttons = shown('button').filter((button) => !button.matches(pressed));
        const corner = (canvas) => canvas.getContext('2d').getImageData(1, 1, 1, 1).data;
        return {
          wide: wide.map((element) => element.closest('section').id),
          buttons: buttons.map((button) => button.textContent),
          sliders: shown('input[type=range]').length,
          empty: shown('#own, #speed, #generate').map(({ id }) => id),
          popover: shown('#status dl').length,
          cut: shown('.origin').filter((story) => story.scrollHeight > story.clientHeight + 1).length,
          legend: Math.min(...corner(document.querySelector('.legend-strip'))) > 200,
        };
      });
      assert.deepEqual(seen, { wide: [], buttons: [], sliders: 0, empty: [], popover: 0, cut: 0, legend: true });
      await close();
    },
  },
  {
    name: 'printed to a file, no map takes away the text around it',
    skip: (kind) => (kind === 'firefox' ? 'only the files of Chromium are read here' : undefined),
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#causal=1`);
      const glyphs = async () => lettersIn(Buffer.from(await page.pdf({ format: 'A4' })));
      const withMaps = await glyphs();
      await page.evaluate(() => {
        const sheet = new CSSStyleSheet();
        sheet.replaceSync('canvas { visibility: hidden }');
        document.adoptedStyleSheets = [sheet];
      });
      const withoutMaps = await glyphs();
      assert.ok(withoutMaps > 4000, `${withoutMaps} letters`);
      assert.ok(withMaps >= withoutMaps, `${withMaps} letters with maps, ${withoutMaps} without`);
      await close();
      return `${withMaps} letters, ${withoutMaps} of them not in maps`;
    },
  },
];
