// The browsers on this machine: how to find and start them.

import { existsSync } from 'node:fs';
import puppeteer from 'puppeteer-core';
import { atLeast, versionIn } from '../../native/dev/find.mjs';
import { NEEDS } from '../../native/dev/needs.mjs';
import { findWebKit, whyNoWebKit } from '../../native/dev/webkit.mjs';
import { launchWebKit } from './webkit.mjs';

const chromiumFlags = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

const kinds = [
  {
    name: 'chromium',
    variable: 'CHROMIUM_PATH',
    places: [
      '/usr/bin/chromium',
      '/usr/bin/chromium-browser',
      '/usr/bin/google-chrome',
      '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome',
    ],
    shell: { variable: 'HEADLESS_SHELL_PATH', place: '/usr/bin/chromium-headless-shell' },
    options: { browser: 'chrome', args: chromiumFlags },
  },
  {
    name: 'firefox',
    variable: 'FIREFOX_PATH',
    places: ['/usr/bin/firefox-esr', '/usr/bin/firefox', '/Applications/Firefox.app/Contents/MacOS/firefox'],
    // Reduced motion is set at the start, because Firefox cannot be made to emulate it later.
    options: { browser: 'firefox', extraPrefsFirefox: { 'ui.prefersReducedMotion': 1 } },
  },
];

/** Finds a browser. Gives its place, or the reason why there is none. */
function found({ name, variable, places, shell }, inShell) {
  const variables = inShell && shell ? [shell.variable, variable] : [variable];
  const named = variables.find((each) => process.env[each]);
  const wanted = process.env[named];
  const executablePath = wanted || (inShell && shell ? [shell.place, ...places] : places).find((place) => existsSync(place));
  if (executablePath && existsSync(executablePath)) return { executablePath };
  const where = wanted ? `${named} names ${wanted}, which does not exist` : `set ${variable} or install it`;
  return { reason: `${name} not found: ${where}` };
}

/**
 * The browsers to test and to measure with, which Puppeteer drives. If one is not installed, `launch` is missing and `reason` says why.
 * @param {{ inShell?: boolean }} [how] `inShell`: chromium-headless-shell, if there is one, instead of Chromium
 */
export function findBrowsers({ inShell = false } = {}) {
  return kinds.map((kind) => {
    const { executablePath, reason } = found(kind, inShell);
    if (reason) return { name: kind.name, reason };
    return { name: kind.name, launch: () => puppeteer.launch({ ...kind.options, executablePath, headless: true }) };
  });
}

/** The program of Chromium, if possible chromium-headless-shell, or the reason why there is none. */
export const findChromium = () => found(kinds[0], true);

/** Starts Chromium with WebGPU on SwiftShader, which computes with the processor. */
export function launchWithGpu(options = {}) {
  const flags = ['--enable-unsafe-webgpu', '--use-webgpu-adapter=swiftshader', '--enable-features=Vulkan', '--use-vulkan=swiftshader'];
  const args = [...chromiumFlags.filter((flag) => flag !== '--disable-gpu'), ...flags];
  return puppeteer.launch({ browser: 'chrome', executablePath: findChromium().executablePath, args, headless: true, ...options });
}

/** Returns WebKit, which runs only the tests that are marked as essential, in the form of findBrowsers(). */
export function findEssentialBrowser() {
  const found = findWebKit();
  return { name: 'webkit', ...(found ? { launch: () => launchWebKit(found) } : { reason: whyNoWebKit() }) };
}

/** Reason why a browser with this version string ("firefox/140.5.0esr") is not tested; null if it is tested. */
export function whyTooOld(name, stated) {
  const { title, minimum } = NEEDS[name];
  const version = versionIn(stated);
  return atLeast(version, minimum) ? null : `${title} ${version} is too old: ${minimum} or newer is needed`;
}
