// Browser tests are repeated only where a browser's fault is named.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { attempted } from '../browser/attempts.mjs';

/** Returns an attempt that fails `times` times, then passes. */
function failing(times, more = {}) {
  let runs = 0;
  const attempt = async () => {
    runs += 1;
    if (runs <= times) throw Object.assign(new Error(`failure ${runs}`), more);
    return 'note';
  };
  return { attempt, runs: () => runs };
}

test('a test that fails is not repeated', async () => {
  for (const browserBug of [undefined, { firefox: 'loses workers' }]) {
    const { attempt, runs } = failing(1);
    await assert.rejects(attempted({ browserBug }, 'chromium', attempt), /failure 1/);
    assert.equal(runs(), 1);
  }
});

test('a test that names a fault of the browser is repeated once, and so is one whose driver does', async () => {
  const named = failing(1);
  const again = 'loses workers: failure 1';
  assert.deepEqual(await attempted({ browserBug: { firefox: 'loses workers' } }, 'firefox', named.attempt), { note: 'note', again });
  assert.deepEqual(await attempted({}, 'webkit', failing(1, { browserBug: 'loses workers' }).attempt), { note: 'note', again });
  const twice = failing(2);
  await assert.rejects(attempted({ browserBug: { firefox: 'loses workers' } }, 'firefox', twice.attempt), /failure 2/);
  assert.equal(twice.runs(), 2);
  assert.deepEqual(await attempted({ browserBug: { firefox: 'loses workers' } }, 'firefox', failing(0).attempt), { note: 'note' });
});
