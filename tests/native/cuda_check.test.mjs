// native/dev/cuda_check.sh on machines that it cannot check, and with programs that take too long.
//
//   node --test tests/native/cuda_check.test.mjs

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { ROOT } from '../../native/dev/build.mjs';

/** Runs a copy of the script, which finds these programs first; each program is the text of a shell script. */
function check(programs, { environment = {}, args = () => [], built = {} } = {}) {
  const folder = mkdtempSync(join(tmpdir(), 'multihead-cuda-check-'));
  try {
    cpSync(join(ROOT, 'native', 'dev', 'cuda_check.sh'), join(folder, 'native', 'dev', 'cuda_check.sh'));
    for (const [into, texts] of [
      ['bin', programs],
      ['built', built],
    ]) {
      mkdirSync(join(folder, into));
      for (const [name, text] of Object.entries(texts)) {
        writeFileSync(join(folder, into, name), `#!/bin/sh\n${text}\n`, { mode: 0o755 });
      }
    }
    const env = { ...process.env, PATH: `${join(folder, 'bin')}:${process.env.PATH}`, ...environment };
    const file = join(folder, 'found.txt');
    const script = join(folder, 'native', 'dev', 'cuda_check.sh');
    const { status, stdout, stderr } = spawnSync('sh', [script, ...args(folder), file], { encoding: 'utf8', env, cwd: folder });
    const found = existsSync(file) ? readFileSync(file, 'utf8') : '';
    if (found) assert.equal(stdout, found, 'what is written is printed too');
    return { status, found, stderr };
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** A multihead-cuda-check with three checks; `special` is the text of a case statement on its argument. */
const checker = (special = '') => `
if [ "$1" = --list ]; then printf 'copies\\nproducts\\nrandom-calls\\n'; exit 0; fi
case $1 in ${special} esac
echo "checked $*"`;
const bench = 'echo "multihead-bench $*"';

/** A cmake that "builds" the programs. */
const cmake = (check = checker(), measure = bench) => `
case "$1" in --build) ;; *) exit 0 ;; esac
mkdir -p "$2/tests" "$2/native"
cat > "$2/tests/multihead-cuda-check" <<'END'
#!/bin/sh
${check}
END
cat > "$2/native/multihead-bench" <<'END'
#!/bin/sh
${measure}
END
chmod +x "$2"/*/multihead-*`;
const machine = { 'nvidia-smi': 'echo GPU', nvcc: 'echo nvcc', 'compute-sanitizer': 'echo sanitized', python3: 'echo peers' };

test('without a GPU the exit code is 3', () => {
  const { status, found } = check({ 'nvidia-smi': 'exit 9' });
  assert.equal(status, 3);
  assert.match(found, /^skipped: no NVIDIA GPU/m);
  assert.equal(check({ ...machine, cmake: cmake(checker('*) exit 3 ;;')) }).status, 3);
});

test('checks one by one, measures, compares and sanitizes; a machine without PyTorch is right too', () => {
  const { status, found } = check({ ...machine, cmake: cmake(), python3: 'echo peers; exit 3' });
  assert.equal(status, 0, found);
  assert.match(found, /^checked copies 100\nchecked products 100\nchecked random-calls 100$/m);
  assert.match(found, /^multihead-bench --device=cuda.*\^forward\/d128-[^]*^multihead-bench .*\^backward\/d256-[^]*^peers$/m);
  assert.match(found, /^compute-sanitizer --tool racecheck, products: sanitized$/m);
});

test('a check that fails or never ends does not keep the others from running', () => {
  const special = 'copies) echo wrong; exit 1 ;; products) sleep 60 ;;';
  const { status, found } = check({ ...machine, cmake: cmake(checker(special), 'exit 0') }, { environment: { CUDA_CHECK_LIMIT: '1' } });
  assert.equal(status, 1);
  assert.match(found, /^wrong\ncopies: FAILED with exit code 1\ncut off after 1 seconds: .*products 100$/m);
  assert.match(found, /^products: FAILED with exit code 124\nchecked random-calls 100$/m);
  assert.match(found, /^peers$/m);
});

test('a failed peer and a failed build give 1', () => {
  assert.equal(check({ ...machine, cmake: cmake(), python3: 'exit 1' }).status, 1);
  const { status, found } = check({ ...machine, cmake: 'echo no compiler; exit 1' });
  assert.equal(status, 1);
  assert.match(found, /^no compiler$/m);
});

test('what could be built is run if the other program fails to build', () => {
  const half = `${cmake()}\nrm "$2/native/multihead-bench"; echo FAILED: bench; exit 1`;
  const { status, found } = check({ ...machine, cmake: half });
  assert.equal(status, 1);
  assert.match(found, /^FAILED: bench$[^]*^checked products 100$/m);
  assert.doesNotMatch(found, /--device=cuda/);
});

test('it measures nothing where multihead-bench cannot be configured', () => {
  const some = `case "$*" in *PROGRAMS=ON*) echo CMake Error: no benchmark; exit 1 ;; esac${cmake()}\nrm "$2/native/multihead-bench"`;
  const { status, found } = check({ ...machine, cmake: some });
  assert.equal(status, 0, found);
  assert.match(found, /^not measured: multihead-bench cannot be configured \(CMake Error: no benchmark \)$/m);
  assert.doesNotMatch(found, /--device=cuda/);
});

test('the clock leaves out what comes last', () => {
  const slow = { ...machine, cmake: cmake(), 'compute-sanitizer': 'sleep 60' };
  const { status, found } = check(slow, { environment: { CUDA_CHECK_SECONDS: '8' } });
  assert.equal(status, 0, found);
  assert.match(found, /^compute-sanitizer --tool racecheck, copies: cut off after \d seconds: /m);
  assert.match(found, /left out, since no time is left: /);
});

test('programs that another machine built run without a compiler', () => {
  const built = { 'multihead-cuda-check': checker(), 'multihead-bench': bench };
  const { status, found } = check({ ...machine, cmake: 'exit 1' }, { built, args: (folder) => ['--built', join(folder, 'built')] });
  assert.equal(status, 0, found);
  assert.match(found, /^checked products 100$[^]*^multihead-bench --device=cuda/m);
});

test('only the named parts run, and Hopper is sanitized first', () => {
  const some = checker().replace('random-calls', 'forward-hopper-64\\nrandom-calls');
  const run = (parts) => check({ ...machine, cmake: cmake(some) }, { environment: { CUDA_CHECK_PARTS: parts } });
  const sanitized = run('sanitize');
  assert.equal(sanitized.status, 0, sanitized.found);
  assert.doesNotMatch(sanitized.found, /^checked|--device=cuda|^peers$/m);
  assert.match(sanitized.found, /racecheck, forward-hopper-64[^]*memcheck, forward-hopper-64[^]*racecheck, copies/);
  assert.match(run('measure').found, /^clocks before: [^]*--device=cuda[^]*^clocks after: /m);
  assert.doesNotMatch(run('measure').found, /^checked|^peers$/m);
  const wrong = run('measure everything');
  assert.equal(wrong.status, 2);
  assert.match(wrong.stderr, /got everything/);
});

test('wrong arguments give 2', () => {
  for (const args of [['--pack'], ['--unknown'], ['--pack', 'folder', 'file'], ['one', 'two']]) {
    const { status, stderr } = spawnSync('sh', [join(ROOT, 'native', 'dev', 'cuda_check.sh'), ...args], { encoding: 'utf8' });
    assert.equal(status, 2, args.join(' '));
    assert.match(stderr, /^Usage: /);
  }
});
