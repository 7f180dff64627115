// The workflows for GitHub: their form, the commands of this repository that they call, and the addresses that a release
// fills into the package's manifest. Nothing here needs a network.
//
//   node --test tests/native/workflows.test.mjs

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { parse } from 'yaml';
import { ROOT } from '../../native/dev/build.mjs';

const folder = join(ROOT, '.github', 'workflows');
const files = readdirSync(folder);
const workflows = new Map(files.map((name) => [name, parse(readFileSync(join(folder, name), 'utf8'))]));
const stepsOf = ({ jobs }) => Object.values(jobs).flatMap(({ steps = [] }) => steps);

test('all have the form that GitHub defines', () => {
  assert.deepEqual([...files].sort(), ['pages.yml', 'release.yml', 'test.yml']);
  const validator = join(ROOT, 'node_modules', '@action-validator', 'cli', 'cli.mjs');
  for (const name of files) {
    const { status, stdout, stderr } = spawnSync(process.execPath, [validator, join(folder, name)], { encoding: 'utf8' });
    assert.equal(status, 0, `${name}\n${stdout}${stderr}`);
  }
});

test('every job has a limit of time, and may only read unless it says why it writes', () => {
  for (const [name, { permissions, jobs }] of workflows) {
    assert.deepEqual(permissions, { contents: 'read' }, name);
    for (const [job, { uses, 'timeout-minutes': limit, needs = [] }] of Object.entries(jobs)) {
      assert.ok(uses ?? limit <= 120, `${name}, ${job}`);
      for (const other of [needs].flat()) assert.ok(Object.hasOwn(jobs, other), `${name}, ${job} needs ${other}`);
      if (uses) assert.ok(existsSync(join(ROOT, uses)), `${name}, ${job} uses ${uses}`);
    }
  }
});

test('actions are named with the version', () => {
  for (const [name, workflow] of workflows) {
    for (const { uses } of stepsOf(workflow)) if (uses) assert.match(uses, /^actions\/[\w-]+@v\d+$/, name);
  }
});

test('commands, options and files that they name exist', () => {
  const { scripts } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  const listed = readFileSync(join(ROOT, 'CMakeLists.txt'), 'utf8');
  let commands = 0;
  for (const [name, workflow] of workflows) {
    for (const { run = '' } of stepsOf(workflow)) {
      for (const [, script] of run.matchAll(/\bnpm run ([\w-]+)/g)) {
        assert.ok(scripts[script], `${name}: npm run ${script}`);
        commands += 1;
      }
      for (const [, option] of run.matchAll(/-D(MULTIHEAD_\w+)=/g)) assert.ok(listed.includes(option), `${name}: ${option}`);
      for (const [path] of run.matchAll(/(?<![\w/.])(native|bindings|\.ci)\/[\w./-]+/g)) assert.ok(existsSync(join(ROOT, path)), `${name}: ${path}`);
    }
  }
  assert.ok(commands >= 3, `${commands} commands`);
});

test('a release tests first, and fills the addresses of its repository into the manifest', () => {
  const { jobs } = workflows.get('release.yml');
  assert.deepEqual([jobs.package.needs, jobs.library.needs], ['test', 'test']);
  assert.equal(jobs.package.permissions['id-token'], 'write'); // for the provenance
  const steps = jobs.package.steps.map(({ run = '' }) => run);
  const fills = steps.findIndex((run) => run.startsWith('npm pkg set'));
  const publishes = steps.findIndex((run) => run.startsWith('npm publish'));
  assert.ok(fills > 0 && publishes > fills);
  assert.match(steps[publishes], /--provenance/);

  const copy = mkdtempSync(join(tmpdir(), 'multihead-release-'));
  try {
    mkdirSync(join(copy, 'bindings'));
    mkdirSync(join(copy, 'web'));
    for (const path of ['', 'bindings', 'web']) copyFileSync(join(ROOT, path, 'package.json'), join(copy, path, 'package.json'));
    const env = { ...process.env, REPOSITORY: 'https://github.com/someone/somewhere' };
    const { status, stderr } = spawnSync('sh', ['-c', steps[fills]], { cwd: copy, env, encoding: 'utf8' });
    assert.equal(status, 0, stderr);
    const before = JSON.parse(readFileSync(join(ROOT, 'bindings', 'package.json'), 'utf8'));
    const { repository, homepage, bugs, ...others } = JSON.parse(readFileSync(join(copy, 'bindings', 'package.json'), 'utf8'));
    assert.deepEqual(others, before);
    assert.deepEqual(repository, { type: 'git', url: 'git+https://github.com/someone/somewhere.git', directory: 'bindings' });
    assert.equal(homepage, 'https://github.com/someone/somewhere#readme');
    assert.deepEqual(bugs, { url: 'https://github.com/someone/somewhere/issues' });
  } finally {
    rmSync(copy, { recursive: true });
  }
});
