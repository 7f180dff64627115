// Each planted fault has its place in the present sources. Whether tests find it takes a compiler and minutes:
// native/dev/cuda_faults.mjs.
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { ROOT } from '../../native/dev/build.mjs';
import { FAULTS, withFault } from '../../native/dev/cuda_faults.mjs';

const sources = join(ROOT, 'src', 'cuda');

for (const fault of FAULTS) {
  test(`planted: ${fault.name}`, () => {
    const text = readFileSync(join(sources, fault.file), 'utf8');
    assert.notEqual(withFault(text, fault), text);
    for (const kernel of fault.kernels) assert.ok(existsSync(join(sources, `${kernel}.cu`)), kernel);
  });
}

test('there are twenty faults at least, each with a name of its own', () => {
  assert.ok(FAULTS.length >= 20);
  assert.equal(new Set(FAULTS.map(({ name }) => name)).size, FAULTS.length);
});

test('a fault whose text is not there once is refused', () => {
  assert.throws(() => withFault('a b', { name: 'none', from: 'c', to: '' }), /none: its text occurs 0 times/);
  assert.throws(() => withFault('a a', { name: 'two', from: 'a', to: '' }), /two: its text occurs 2 times/);
});
