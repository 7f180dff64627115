// Tests how `npm test` remembers suites that passed.
import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { fingerprint } from '../../native/dev/build.mjs';
import { Passed } from '../../native/dev/passed.mjs';
import { SUITES } from '../../native/dev/suites.mjs';

let folder;
const passed = (machine = 'this machine') => new Passed(join(folder, 'passed.json'), machine);
const outcome = (changes) => ({ passed: 3, failed: 0, skipped: [], output: 'long', ...changes });

beforeEach(() => (folder = mkdtempSync(join(tmpdir(), 'multihead-passed-'))));
afterEach(() => rmSync(folder, { recursive: true }));

test('a suite that passed is found again, with the reasons of its skipped tests', () => {
  const skipped = [{ name: 'a', reason: 'no such processor' }];
  passed().store('core', 'files', outcome({ skipped }));
  passed().store('page', 'others', outcome({ passed: 4 }));
  assert.deepEqual(passed().find('core', 'files'), outcome({ skipped, output: '' }));
  assert.deepEqual(passed().find('page', 'others'), outcome({ passed: 4, output: '' }));
});

test('other files, another machine and suites without a result are not found', () => {
  passed().store('core', 'files', outcome());
  assert.equal(passed().find('core', 'changed files'), undefined);
  assert.equal(passed().find('toString', 'files'), undefined);
  assert.equal(passed('a newer Node').find('core', 'files'), undefined);
});

test('a failure, or a run without any test, is forgotten with what was known', () => {
  for (const changes of [{ failed: 1 }, { passed: 0 }]) {
    passed().store('core', 'files', outcome());
    passed().store('core', 'files', outcome(changes));
    assert.equal(passed().find('core', 'files'), undefined);
  }
});

test('a damaged file counts as empty', () => {
  for (const text of ['', '{', 'null', '[]', '{"machine":"this machine"}']) {
    writeFileSync(join(folder, 'passed.json'), text);
    assert.equal(passed().find('core', 'files'), undefined);
    passed().store('core', 'files', outcome());
    assert.notEqual(passed().find('core', 'files'), undefined);
  }
});

test('a fingerprint changes with the contents and the names of files, in folders too', () => {
  const root = fileURLToPath(new URL('../..', import.meta.url));
  const name = `build/test-results/fingerprint-${process.pid}`;
  const write = (file, text) => writeFileSync(join(root, `${name}-${file}`), text);
  const prints = () => fingerprint([`${name}-a`, `${name}-b`]);
  const seen = [prints()];
  try {
    for (const [file, text] of [
      ['a', ''],
      ['a', '1'],
      ['a', '2'],
      ['b', ''],
    ]) {
      write(file, text);
      seen.push(prints());
    }
  } finally {
    for (const file of ['a', 'b']) rmSync(join(root, `${name}-${file}`), { force: true });
  }
  assert.equal(new Set(seen).size, seen.length);
});

test('a fingerprint leaves out what is listed with a !', () => {
  assert.equal(fingerprint(['native/dev', '!native/dev/bench']), fingerprint(['native/dev', '!native/dev/bench', '!src']));
  assert.notEqual(fingerprint(['native/dev', '!native/dev/bench']), fingerprint(['native/dev']));
});

test('every file and folder that a suite uses exists', () => {
  const root = fileURLToPath(new URL('../..', import.meta.url));
  for (const { name, uses } of SUITES) {
    for (const path of uses.map((path) => path.replace(/^!/, ''))) {
      if (path.startsWith('build/quick')) continue; // `npm test -- --all`, which runs this, builds every SIMD target instead
      if (path.startsWith('build/arm64') && !existsSync(join(root, 'build/toolchain/arm64.cmake'))) continue; // no emulator
      assert(existsSync(join(root, path)), `${name}: ${path}`);
    }
  }
});
