// Tests the choice of browsers for the browser tests.
//
//   node --test tests/native/browsers.test.mjs

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { NEEDS } from '../../native/dev/needs.mjs';
import { findBrowsers, whyTooOld } from '../browser/browsers.mjs';

/** Calls `look` with these variables of the environment. */
async function withVariables(variables, look) {
  const before = { ...process.env };
  for (const [name, value] of Object.entries(variables)) {
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
  }
  try {
    return await look();
  } finally {
    for (const name of Object.keys(variables)) {
      if (name in before) process.env[name] = before[name];
      else delete process.env[name];
    }
  }
}

test('HEADLESS_SHELL_PATH is for the quick tests alone, CHROMIUM_PATH for all', async () => {
  const chromium = (how) => findBrowsers(how).find(({ name }) => name === 'chromium').reason ?? 'found';
  const both = () => [chromium(), chromium({ inShell: true })];
  const missing = (variable) => `chromium not found: ${variable} names /none/${variable}, which does not exist`;
  const at = (shell, itself) => ({ HEADLESS_SHELL_PATH: shell, CHROMIUM_PATH: itself });
  const [noShell, noChromium] = ['HEADLESS_SHELL_PATH', 'CHROMIUM_PATH'].map((variable) => `/none/${variable}`);
  assert.deepEqual(await withVariables(at(noShell, process.execPath), both), ['found', missing('HEADLESS_SHELL_PATH')]);
  assert.deepEqual(await withVariables(at(process.execPath, noChromium), both), [missing('CHROMIUM_PATH'), 'found']);
  assert.deepEqual(await withVariables(at(undefined, noChromium), both), [missing('CHROMIUM_PATH'), missing('CHROMIUM_PATH')]);
});

test('the set-up finds the headless shell, else Chromium, and installs none where CHROMIUM_PATH is set', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'multihead-browsers-'));
  const program = (name, lines = '') => writeFileSync(join(folder, name), `#!/bin/sh\n${lines}`, { mode: 0o755 });
  const found = (CHROMIUM_PATH) => withVariables({ PATH: folder, CHROMIUM_PATH }, async () => (await NEEDS.headlessShell.find())?.path ?? null);
  try {
    program('chromium');
    assert.equal(await found(), join(folder, 'chromium'));
    // If apt knows the shell, the survey reports it as missing to root, because root can install it.
    program('apt-get');
    program('dpkg-deb');
    program('apt-cache', 'echo "$2:"\necho "  Installed: (none)"\necho "  Candidate: 156"\n');
    assert.equal(await found(), process.getuid?.() === 0 ? null : join(folder, 'chromium'));
    assert.equal(await found('/some/chrome'), '/some/chrome');
    program('apt-cache');
    assert.equal(await found(), join(folder, 'chromium'));
    program('chromium-headless-shell');
    assert.equal(await found(), join(folder, 'chromium-headless-shell'));
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('a browser that is too old is left out with the reason', () => {
  assert.equal(whyTooOld('firefox', 'firefox/115.3.0esr'), 'Firefox 115.3.0 is too old: 128 or newer is needed');
  assert.equal(whyTooOld('chromium', 'Chrome/99.0.4844.51'), 'Chromium or Chrome 99.0.4844.51 is too old: 114 or newer is needed');
  assert.equal(whyTooOld('webkit', 'WebKitGTK 2.38.1'), 'WebKitGTK 2.38.1 is too old: 2.40 or newer is needed');
  assert.equal(whyTooOld('firefox', 'firefox/140.5.0esr'), null);
  assert.equal(whyTooOld('webkit', 'WebKitGTK 2.50.6'), null);
  assert.equal(whyTooOld('chromium', 'Chrome/156.0.7000.1'), null);
});
