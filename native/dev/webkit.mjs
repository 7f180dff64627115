// WebKitGTK: the engine of Safari, with its small browser, and the program that drives it for tests.
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { findProgram } from './find.mjs';

/** MiniBrowser lies in a folder of its library, such as /usr/lib/x86_64-linux-gnu/webkit2gtk-4.1. */
function findMiniBrowser() {
  const inside = (folder, pattern) =>
    existsSync(folder)
      ? readdirSync(folder)
          .filter((name) => pattern.test(name))
          .map((name) => join(folder, name))
      : [];
  const libraries = ['/usr/lib', '/usr/lib64', '/usr/libexec', ...inside('/usr/lib', /-linux-gnu/)];
  const folders = libraries.flatMap((folder) => inside(folder, /^webkit(2gtk|gtk)-/));
  return findProgram(...folders.map((folder) => join(folder, 'MiniBrowser')));
}

/** Returns the paths { path, browser, screen } of WebKitWebDriver, MiniBrowser and Xvfb, or null if one is missing. */
export function findWebKit() {
  const [path, browser, screen] = [findProgram('WebKitWebDriver'), findMiniBrowser(), findProgram('Xvfb')];
  return path && browser && screen && { path, browser, screen, version: null };
}

/** Reason why findWebKit() finds nothing. */
export const whyNoWebKit = () =>
  process.platform === 'linux' ? 'webkit not found: install webkit2gtk-driver and xvfb' : 'only Linux has WebKitGTK and its driver';
