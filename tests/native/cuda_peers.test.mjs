// native/bench/cuda_peers.py: its statistics, and its messages if PyTorch or a GPU is missing.
//
//   node --test tests/native/cuda_peers.test.mjs        on a machine with Python

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { findProgram } from '../../native/dev/find.mjs';

const python = findProgram('python3');

test('cuda_peers.py passes its tests', { skip: python ? false : 'no Python was found' }, () => {
  const tests = fileURLToPath(new URL('cuda_peers_test.py', import.meta.url));
  const env = { ...process.env, PYTHONDONTWRITEBYTECODE: '1' };
  const { status, stderr } = spawnSync(python, [tests], { encoding: 'utf8', env });
  assert.equal(status, 0, stderr);
  assert.match(stderr, /^Ran [1-9]\d* tests/m);
});
