// multihead-mpi with 2 and 4 local ranks: outputs of every method against one process, traffic, bad arguments.
//
//   node --test tests/native/mpi.test.mjs        after a build on a machine with MPI (Debian: openmpi-bin, libopenmpi-dev)

import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { NATIVE_PROGRAM } from '../../native/dev/bench/programs.mjs';
import { hasMpirun, mpirun } from './mpirun.mjs';

const program = join(dirname(NATIVE_PROGRAM), 'multihead-mpi');
const skip = existsSync(program) && hasMpirun ? false : 'the build found no MPI, or there is no mpirun';

const ranks = (count, ...args) => mpirun(count, program, '--repeats', '1', ...args);

for (const count of [2, 4]) {
  for (const method of ['ring', 'all_gather', 'heads', 'decode']) {
    test(`${count} ranks, ${method}: the outputs of one process, and the bytes of the formula`, { skip }, () => {
      const layout = method === 'decode' ? 'contiguous' : 'zigzag';
      const args = ['--shape', 'tiny', '--method', method, '--layout', layout, '--causal', '--check'];
      const { status, stdout, stderr } = ranks(count, ...args);
      assert.equal(status, 0, stdout + stderr);
      const lines = stdout.match(/^\d+ .*$/gm) ?? [];
      assert.equal(lines.length, count, stdout);
      for (const line of lines) {
        const [, sent, formula, , , difference] = line.trim().split(/\s+/).map(Number);
        assert.equal(sent, formula, line);
        assert.ok(difference <= 2e-6, line);
      }
    });
  }
}

for (const layout of ['contiguous', 'zigzag']) {
  for (const method of ['ring', 'all_gather']) {
    test(`a window, ${method}, ${layout}: only keys that a rank sees are sent`, { skip }, () => {
      const args = ['--shape', 'tiny', '--method', method, '--layout', layout, '--causal', '--check'];
      const bytes = (stdout) => (stdout.match(/^\d+ .*$/gm) ?? []).map((line) => Number(line.trim().split(/\s+/)[1]));
      const [all, seen] = [[], ['--window', '2']].map((window) => ranks(4, ...args, ...window));
      assert.equal(seen.status, 0, seen.stdout + seen.stderr);
      const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
      assert.ok(sum(bytes(seen.stdout)) > 0 && sum(bytes(seen.stdout)) < sum(bytes(all.stdout)), seen.stdout);
    });
  }
}

test('--delay prints how much of it the computation hides', { skip }, () => {
  const args = ['--shape', 'gpt2-1k', '--layout', 'zigzag', '--causal', '--delay', '5', '--check'];
  const { status, stdout, stderr } = ranks(2, ...args);
  assert.equal(status, 0, stdout + stderr);
  const [, share] = /^(\d+) % of the delay of 1 transfer hidden behind computation$/m.exec(stdout) ?? [];
  assert.ok(Number(share) >= 0 && Number(share) <= 100, stdout);
});

test('a rank that others wait for too long ends the run', { skip }, () => {
  // The second rank alone has --check. Its comparison with one process takes longer than the 0.3 s that the first rank
  // waits.
  const args = ['--shape', 'long-8k', '--repeats', '1'];
  const others = [':', '-n', '1', program, ...args, '--check'];
  const { status, signal, stderr } = mpirun(1, program, ...args, '--time-limit', '0.3', ...others);
  assert.equal(signal, null, stderr);
  assert.notEqual(status, 0, stderr); // 1, or the status of the rank that was stopped
  assert.match(stderr, /^rank 0: communicator: expected .*every rank/m);
});

test('bad arguments are named, and give 2', { skip }, () => {
  for (const [args, message] of [
    [['--shape', 'large'], /--shape: expected one of tiny, .*, got large/],
    [['--method', 'star'], /--method.*star/],
    [['--fliter'], /--fliter/],
    [['--shape', 'tiny', '--method', 'decode', '--layout', 'zigzag'], /sharding\.layout: /],
  ]) {
    const { status, stdout, stderr } = ranks(2, ...args);
    assert.equal(status, 2, stdout + stderr);
    assert.match(stderr, message);
  }
  const tooMany = ranks(5, '--shape', 'tiny', '--method', 'heads');
  assert.equal(tooMany.status, 2);
  assert.match(tooMany.stderr, /sharding\.method: expected a key\/value head for each of the 5 ranks/);
});

test('--help names every option', { skip }, () => {
  const { status, stdout } = ranks(1, '--help');
  assert.equal(status, 0);
  const options = '--shape --method --layout --causal --window --check --threads --repeats --delay --time-limit';
  for (const option of options.split(' ')) assert.ok(stdout.includes(option), option);
});
