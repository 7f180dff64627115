// Each planted fault has its place in the present sources, and is taken back. Whether tests find it takes builds and minutes:
// `npm run plant`.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { ROOT } from '../../native/dev/build.mjs';
import { CUDA_FAULTS, FAULTS } from '../../native/dev/faults.mjs';
import { PARTS, drawPlaces, planted, suitesFor, withFault } from '../../native/dev/plant.mjs';

const PROGRAM = join(ROOT, 'native', 'dev', 'plant.mjs');
const plant = (...args) => spawnSync(process.execPath, [PROGRAM, ...args], { encoding: 'utf8' });

test('every fault has its place in the sources, once, and a name of its own', () => {
  for (const fault of [...FAULTS, ...CUDA_FAULTS]) {
    const text = readFileSync(join(ROOT, fault.file), 'utf8');
    assert.notEqual(withFault(text, fault), text, fault.fault);
  }
  assert.ok(CUDA_FAULTS.length >= 20);
  for (const faults of [FAULTS, CUDA_FAULTS]) assert.equal(new Set(faults.map(({ fault }) => fault)).size, faults.length);
});

test('forty faults: eight of each part, in its folders', () => {
  for (const [part, folders] of Object.entries(PARTS)) {
    const faults = FAULTS.filter((fault) => fault.part === part);
    assert.equal(faults.length, 8);
    for (const { file } of faults)
      assert.ok(
        folders.some((folder) => file.startsWith(`${folder}/`)),
        file,
      );
  }
});

test('places are drawn from all parts, the same for the same seed', () => {
  const places = drawPlaces(49);
  assert.deepEqual(drawPlaces(49), places);
  assert.notDeepEqual(drawPlaces(50), places);
  assert.equal(places.length, 8 * Object.keys(PARTS).length);
  for (const { file, line, text } of places) assert.equal(readFileSync(join(ROOT, file), 'utf8').split('\n')[line - 1], text);
});

test('every suite of npm test may find a fault, those of its part first', () => {
  const [page] = FAULTS.filter(({ part }) => part === 'page');
  const [core] = FAULTS;
  assert.match(suitesFor(page)[0].name, /^page, modules/);
  assert.match(suitesFor(core)[0].name, /^conformance, two/);
  assert.equal(new Set(suitesFor(page).map(({ name }) => name)).size, suitesFor(core).length);
  assert.match(suitesFor(CUDA_FAULTS[0])[0].name, /^CUDA/);
});

test('a fault whose text is not there once is refused', () => {
  assert.throws(() => withFault('a b', { fault: 'none', from: 'c', to: '' }), /none: its text occurs 0 times/);
  assert.throws(() => withFault('a a', { fault: 'two', from: 'a', to: '' }), /two: its text occurs 2 times/);
});

const fault = { fault: 'x', file: 'x.txt', from: 'right', to: 'wrong' };
/** Runs `work` with a folder of one file. */
async function inFolder(work) {
  const folder = mkdtempSync(join(tmpdir(), 'multihead-plant-'));
  const file = join(folder, fault.file);
  writeFileSync(file, 'all right\n');
  try {
    await work(folder, () => readFileSync(file, 'utf8'));
    assert.equal(readFileSync(file, 'utf8'), 'all right\n');
  } finally {
    rmSync(folder, { recursive: true });
  }
}

test('a fault is taken back after the work, and after work that fails', () =>
  inFolder(async (folder, text) => {
    assert.equal(await planted(fault, () => text(), folder), 'all wrong\n');
    await assert.rejects(
      planted(fault, () => Promise.reject(new Error('broken')), folder),
      /broken/,
    );
    await assert.rejects(
      planted({ ...fault, from: 'none' }, () => {}, folder),
      /occurs 0 times/,
    );
  }));

for (const signal of ['SIGINT', 'SIGTERM']) {
  test(`a fault is taken back after ${signal}`, () =>
    inFolder(async (folder, text) => {
      const wait = `console.log('planted'), new Promise((end) => setTimeout(end, 60e3))`;
      const code = `import { planted } from ${JSON.stringify(PROGRAM)}; await planted(${JSON.stringify(fault)}, () => (${wait}), ${JSON.stringify(folder)});`;
      const child = spawn(process.execPath, ['--input-type=module', '-e', code], { stdio: ['ignore', 'pipe', 'inherit'] });
      await once(child.stdout, 'data');
      assert.equal(text(), 'all wrong\n');
      child.kill(signal);
      assert.deepEqual(await once(child, 'exit'), [130, null]);
    }));
}

test('the program: a list, places, and wrong arguments', () => {
  const listed = plant('--list', '--only', '1,40');
  assert.equal(listed.status, 0, listed.stderr);
  assert.match(listed.stdout, /^ 1 {2}kernels .*\n40 {2}page .*\n$/);
  assert.equal(plant('--list', '--cuda').stdout.trim().split('\n').length, CUDA_FAULTS.length);
  assert.equal(plant('--seed', '7').stdout.trim().split('\n').length, 40);
  for (const [args, message] of [
    [['--only', '0'], /--only: expected numbers from 1 to 40 with commas between them, got 0/],
    [['--only', 'x'], /got x/],
    [['--seed', 'x'], /--seed: expected a whole number, got x/],
    [['--everything'], /Unknown option '--everything'/],
  ]) {
    const { status, stderr } = plant(...args);
    assert.equal(status, 2, args.join(' '));
    assert.match(stderr, message);
  }
});
