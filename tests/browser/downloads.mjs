// Catches the files that the page offers for download, and measures a saved picture of a map.

import { eventually } from './harness.mjs';

export const catchDownloads = (page) =>
  page.evaluate(() => {
    window.saved = [];
    URL.createObjectURL = (blob) => {
      window.saved.push(blob);
      return '#';
    };
    HTMLAnchorElement.prototype.click = function () {
      window.savedName = this.download;
    };
  });

/** Presses a save button, waits for the file (the last of `window.saved`), and returns its name. */
export async function press(page, selector) {
  const before = await page.evaluate(() => window.saved.length);
  await page.$eval(selector, (button) => button.click());
  await eventually(async () => (await page.evaluate(() => window.saved.length)) > before, `${selector} saves a file`);
  return page.evaluate(() => window.savedName);
}

/**
 * The size of the last saved picture, which shows a map of at most 24 `tokens`, and the number of its pixels with ink:
 * in the title, in the names of the queries left of the cells, and in the names of the keys above the cells.
 */
export const pictureSaved = (page, tokens) =>
  page.evaluate(async (count) => {
    const bitmap = await createImageBitmap(window.saved.at(-1));
    const { width, height } = bitmap;
    const pen = new OffscreenCanvas(width, height).getContext('2d', { willReadFrequently: true });
    pen.drawImage(bitmap, 0, 0);
    const [cells, margin, title] = [2 * 44 * count, 32, 52];
    const ground = pen.getImageData(0, 0, 1, 1).data;
    const ink = (x, y, w, h) => {
      const { data } = pen.getImageData(x, y, w, h);
      let found = 0;
      for (let i = 0; i < data.length; i += 4) {
        if ([0, 1, 2].some((c) => Math.abs(data[i + c] - ground[c]) > 60)) found += 1;
      }
      return found;
    };
    const top = height - margin - cells;
    const axis = 30;
    const names = 56;
    return {
      ...{ width, height },
      title: ink(margin, 8, width - 2 * margin, title),
      queries: ink(margin + axis, top, names, cells),
      keys: ink(margin + axis + names, margin + title + axis, cells, top - margin - title - axis - 8),
    };
  }, tokens);
