// The targets of `npm run try-processors`, without building any.
//
//   node --test tests/native/try_processors.test.mjs

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { ROOT } from '../../native/dev/build.mjs';
import { TARGETS } from '../../native/dev/processors/targets.mjs';

const program = (...args) => spawnSync(process.execPath, [join(ROOT, 'native', 'dev', 'try_processors.mjs'), ...args], { encoding: 'utf8' });

test('names are distinct, and every target is in the table of native/PROCESSORS.md', () => {
  const names = TARGETS.map(({ name }) => name);
  assert.equal(new Set(names).size, names.length);
  const document = readFileSync(join(ROOT, 'native', 'PROCESSORS.md'), 'utf8');
  const rows = [...document.matchAll(/^\| `([^`]+)` \|/gm)].map(([, name]) => name);
  assert.deepEqual(rows.toSorted(), names.toSorted());
});

test('--list prints every target, and why tests are left out', () => {
  const { status, stdout } = program('--list');
  assert.equal(status, 0);
  for (const { name, notRun } of TARGETS) {
    assert.match(stdout, new RegExp(`^${name.replaceAll('+', '\\+')}$`, 'm'));
    for (const reason of Object.values(notRun)) assert.ok(reason.length > 0 && stdout.includes(reason));
  }
});

test('a name that no target begins with, and a number that is none, are refused', () => {
  for (const args of [['itanium'], ['--random', 'many'], ['--random=-1']]) {
    const { status, stdout, stderr } = program(...args);
    assert.equal(status, 2, stdout + stderr);
  }
});
