// Takes the pictures of the built page again: for the README, for link previews, and for the touch icon.
//
//   npm run build && node tests/browser/pictures.mjs        in Chromium

import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { findBrowsers } from './browsers.mjs';
import { openPage, startServer, until } from './harness.mjs';

const web = (path) => fileURLToPath(new URL(`../../web/${path}`, import.meta.url));

const chromium = findBrowsers().find(({ name }) => name === 'chromium');
if (!chromium.launch) throw new Error(chromium.reason);
const browser = await chromium.launch();
const server = await startServer();

async function pictureOf(size, path) {
  const { page, close } = await openPage(browser, server.url, { ...size, scheme: 'light' });
  // Remove the status chip, because its time depends on this machine.
  await until(page, () => /median of warm runs/.test(document.querySelector('#status').textContent));
  await page.evaluate(() => document.querySelector('#status').remove());
  await page.screenshot({ path });
  await close();
}

// The icon in the repository has a palette of 29 colors instead of three bytes a pixel: 1 kB less for Firefox, which
// fetches it with the page. Reduce a new one in the same way.
async function touchIcon(path) {
  const icon = await readFile(web('public/favicon.svg'), 'utf8');
  const page = await browser.newPage();
  await page.setViewport({ width: 180, height: 180 });
  await page.setContent(
    `<style>body { margin: 0; height: 180px; display: grid; place-items: center; background: #f7f7f4 } svg { width: 132px }</style>${icon}`,
  );
  await page.screenshot({ path });
}

try {
  await pictureOf({ width: 1280, height: 800 }, web('screenshot.png'));
  await pictureOf({ width: 1200, height: 630 }, web('public/card.png'));
  await touchIcon(web('public/touch-icon.png'));
} finally {
  await browser.close();
  await server.close();
}
