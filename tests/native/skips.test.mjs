// In CI a test that is skipped for a reason that is not on the list of native/dev/skips.mjs fails.
//
//   node --test tests/native/skips.test.mjs

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { googleTestCounts, nodeTestCounts, notBuilt, vitestCounts } from '../../native/dev/outcomes.mjs';
import { ALLOWED_SKIPS, reportSkips } from '../../native/dev/skips.mjs';

let folder;
before(() => (folder = mkdtempSync(join(tmpdir(), 'multihead-skips-'))));
after(() => rmSync(folder, { recursive: true }));

const [allowed] = ALLOWED_SKIPS.keys();
const planted = (reason) => ({ name: 'planted', reason });

test('a reason that is not on the list fails in CI only; one on the list never does', () => {
  const skipped = [planted('no such program'), planted('no such program'), planted(allowed)];
  assert.equal(reportSkips(skipped, true).failed, 2);
  assert.equal(reportSkips(skipped, false).failed, 0);
  assert.equal(reportSkips([planted(allowed)], true).failed, 0);
});

test('each reason is printed once with the number of its tests, and a reason that is not allowed with their names', () => {
  const { lines } = reportSkips([planted('none'), planted(allowed), planted(allowed), { name: 'other', reason: 'none' }], true);
  assert.match(lines[0], /^skipped: 2 × none; .*does not allow/);
  assert.deepEqual(lines.slice(1, 3), ['  planted', '  other']);
  assert.equal(lines[3], `skipped: 2 × ${allowed} (${ALLOWED_SKIPS.get(allowed)})`);
  assert.equal(lines.length, 4);
});

/** Runs a suite of one file of node:test as `npm test` does, and returns what that prints and the counts. */
function runPlanted(code, ci) {
  const file = join(folder, 'planted.test.mjs');
  writeFileSync(file, `import { test } from 'node:test';\n${code}\ntest('runs', () => {});\n`);
  const program = `
    const [{ runSuites }, { nodeTests }, { Passed }] = await Promise.all(
      ['test', 'outcomes', 'passed'].map((name) => import(${JSON.stringify(new URL('../../native/dev/', import.meta.url).href)} + name + '.mjs')));
    const suite = { name: 'planted suite', uses: [], run: () => nodeTests([${JSON.stringify(file)}]) };
    const { total } = await runSuites([suite], { passedBefore: new Passed(${JSON.stringify(join(folder, 'passed.json'))}, ''), everything: true });
    console.log(JSON.stringify(total));`;
  const env = { ...process.env, CI: ci };
  delete env.NODE_TEST_CONTEXT; // or the inner test runner would report to the one that runs this test
  const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', program], { encoding: 'utf8', env });
  return { printed: stdout + stderr, total: JSON.parse(stdout.trimEnd().split('\n').at(-1) || 'null') };
}

test('npm test fails with a skip planted in a suite, in CI', () => {
  for (const [ci, failed] of [
    ['true', 1],
    ['', 0],
  ]) {
    const { printed, total } = runPlanted(`test('planted', { skip: 'planted' }, () => {});`, ci);
    assert.deepEqual(total, { passed: 1, failed, skipped: 1 }, printed);
    assert.match(printed, /^ {2}planted suite: planted$/m);
  }
});

test('npm test names the failed tests again at its end', () => {
  const { printed, total } = runPlanted(`test('planted', () => { throw new Error('first line\\nsecond line'); });`, '');
  assert.deepEqual(total, { passed: 1, failed: 1, skipped: 0 }, printed);
  assert.match(printed, /^failed: planted suite: planted: first line\n\{/m);
});

test('the failed tests of every kind of suite are found, with their messages', () => {
  const tap = [
    'not ok 1 - a',
    '  ---',
    '  error: |-',
    '    one',
    '    two',
    '  ...',
    'not ok 2 - b',
    '  ---',
    "  error: 'three'",
    '  ...',
    '# fail 2',
  ];
  assert.deepEqual(nodeTestCounts(`${tap.join('\n')}\n`).failures, [
    { name: 'a', message: 'one' },
    { name: 'b', message: "'three'" },
  ]);
  const google = { name: 'S', testsuite: [{ name: 'T', failures: [{ failure: 'f.cc:3\nExpected 1' }], result: 'COMPLETED' }] };
  assert.deepEqual(googleTestCounts({ testsuites: [google] }, '').failures, [{ name: 'S.T', message: 'f.cc:3: Expected 1' }]);
  const assertionResults = [{ status: 'failed', fullName: 'c', failureMessages: ['four'] }];
  assert.deepEqual(vitestCounts({ numFailedTests: 1, testResults: [{ assertionResults }] }).failures, [{ name: 'c', message: 'four' }]);
});

test('skipped tests of every kind of suite are found, with their reasons', () => {
  const tap = ['ok 1 - a # SKIP for a reason', '    ok 2 - b # SKIP', 'not ok 3 - c # TODO later', 'ok 4 - d', '# pass 1', '# fail 0'];
  assert.deepEqual(nodeTestCounts(tap.join('\n')).skipped, [
    { name: 'a', reason: 'for a reason' },
    { name: 'b', reason: 'no reason given' },
    { name: 'c', reason: 'later' },
  ]);
  const google = (test) =>
    googleTestCounts({ testsuites: [{ name: 'S', testsuite: [{ name: 'T', file: 'f.cc', line: 3, ...test }] }] }, 'f.cc:5: Skipped\nprinted\n');
  assert.deepEqual(google({ status: 'RUN', result: 'SKIPPED', skipped: [{ message: 'f.cc:5\nwritten\n' }] }).skipped, [
    { name: 'S.T', reason: 'written' },
  ]);
  assert.deepEqual(google({ status: 'RUN', result: 'SKIPPED' }).skipped, [{ name: 'S.T', reason: 'printed' }]);
  assert.deepEqual(google({ status: 'NOTRUN', result: 'SUPPRESSED' }).skipped, [{ name: 'S.T', reason: 'disabled' }]);
  const assertionResults = [{ status: 'passed' }, { status: 'pending', fullName: 'skip' }, { status: 'todo', fullName: 'todo' }];
  const { skipped } = vitestCounts({ numPassedTests: 1, numFailedTests: 0, numFailedTestSuites: 0, testResults: [{ assertionResults }] });
  assert.deepEqual(
    skipped.map(({ name }) => name),
    ['skip', 'todo'],
  );
  assert.deepEqual(notBuilt('kernels', 'no compiler').skipped, [{ name: 'kernels', reason: 'no compiler' }]);
  for (const { reason } of [...skipped, planted('no compiler'), planted('disabled'), planted('no reason given')]) {
    assert.equal(reportSkips([planted(reason)], true).failed, 1, reason);
  }
});
