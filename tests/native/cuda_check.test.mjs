// native/dev/cuda_check.sh on machines that it cannot check, and with programs that take too long.
//
//   node --test tests/native/cuda_check.test.mjs

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { ROOT } from '../../native/dev/build.mjs';

/** Runs a copy of the script, where it finds these programs first; each is the text of a shell script. */
function check(programs, environment = {}) {
  const folder = mkdtempSync(join(tmpdir(), 'multihead-cuda-check-'));
  try {
    cpSync(join(ROOT, 'native', 'dev', 'cuda_check.sh'), join(folder, 'native', 'dev', 'cuda_check.sh'));
    mkdirSync(join(folder, 'bin'));
    for (const [name, text] of Object.entries(programs)) {
      writeFileSync(join(folder, 'bin', name), `#!/bin/sh\n${text}\n`, { mode: 0o755 });
    }
    const env = { ...process.env, PATH: `${join(folder, 'bin')}:${process.env.PATH}`, ...environment };
    const file = join(folder, 'found.txt');
    const { status } = spawnSync('sh', [join(folder, 'native', 'dev', 'cuda_check.sh'), file], { encoding: 'utf8', env });
    return { status, found: readFileSync(file, 'utf8') };
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** A cmake that "builds" programs, which say what they are called with and end with `code`. */
const cmake = (code, seconds = 0) => `
case "$1" in --build) ;; *) exit 0 ;; esac
mkdir -p "$2/tests" "$2/native"
for program in tests/multihead-cuda-check native/multihead-bench; do
  printf '#!/bin/sh\\necho "$(basename "$0")" "$@"\\nsleep ${seconds}\\nexit ${code}\\n' > "$2/$program"
  chmod +x "$2/$program"
done`;
const machine = { 'nvidia-smi': 'echo GPU', nvcc: 'echo nvcc', 'compute-sanitizer': 'echo sanitized' };

test('without a GPU the exit code is 3', () => {
  const { status, found } = check({ 'nvidia-smi': 'exit 9' });
  assert.equal(status, 3);
  assert.match(found, /^skipped: no NVIDIA GPU/m);
});

test('checks, measures, compares and sanitizes; a machine without PyTorch is right too', () => {
  const { status, found } = check({ ...machine, cmake: cmake(0), python3: 'echo peers; exit 3' });
  assert.equal(status, 0, found);
  assert.match(found, /^multihead-cuda-check 100$[^]*^multihead-bench --device=cuda[^]*^peers$[^]*^sanitized$/m);
});

test('a wrong result, a failed peer and a failed build give 1', () => {
  assert.equal(check({ ...machine, cmake: cmake(1), python3: 'exit 0' }).status, 1);
  assert.equal(check({ ...machine, cmake: cmake(0), python3: 'exit 1' }).status, 1);
  const { status, found } = check({ ...machine, cmake: 'echo no compiler; exit 1' });
  assert.equal(status, 1);
  assert.match(found, /^no compiler$/m);
});

test('it measures nothing where multihead-bench cannot be configured', () => {
  const some = `case "$*" in *PROGRAMS=ON*) echo CMake Error: no benchmark; exit 1 ;; esac${cmake(0)}`;
  const { status, found } = check({ ...machine, cmake: some });
  assert.equal(status, 0, found);
  assert.match(found, /^not measured: multihead-bench cannot be configured \(CMake Error: no benchmark \)$/m);
  assert.doesNotMatch(found, /--device=cuda/);
});

test('the clock cuts programs off, and leaves out what comes last', () => {
  const slow = { ...machine, cmake: cmake(0, 60), python3: 'sleep 60' };
  const { status, found } = check(slow, { CUDA_CHECK_SECONDS: '5' });
  assert.equal(status, 1); // the comparison with the oracle did not end
  assert.match(found, /^cut off after \d seconds: build\/cuda-check\/tests\/multihead-cuda-check/m);
  assert.match(found, /^left out, since no time is left: /m);
});
