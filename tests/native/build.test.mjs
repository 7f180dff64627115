// How the build treats machines that it does not know.
//
//   node --test tests/native/build.test.mjs        after the set-up

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));
const compiler = JSON.parse(readFileSync(join(root, 'build/toolchain/manifest.json'), 'utf8')).cxx.path;

/** A compiler that treats -march=native as `onNative` (shell) says, as a program in `folder`. */
function compilerThat(onNative, folder) {
  const path = join(folder, 'c++');
  writeFileSync(
    path,
    `#!/bin/sh
given() { case " $arguments " in *" $1 "*) true ;; *) false ;; esac; }
arguments="$*"
if given -march=native; then ${onNative}; fi
exec ${JSON.stringify(compiler)} "$@"
`,
  );
  chmodSync(path, 0o755);
  return path;
}

/** What multihead_machine_flags() finds for that compiler. */
function flagsOf(onNative) {
  const folder = mkdtempSync(join(tmpdir(), 'multihead-build-'));
  try {
    const lines = [
      'cmake_minimum_required(VERSION 3.25)',
      'project(flags LANGUAGES CXX)',
      `include("${join(root, 'native/machine_flags.cmake')}")`,
      'multihead_machine_flags(flags)',
      'file(WRITE "${CMAKE_BINARY_DIR}/flags" "${flags}")',
    ];
    mkdirSync(join(folder, 'source'));
    writeFileSync(join(folder, 'source', 'CMakeLists.txt'), lines.join('\n'));
    const { status, stderr } = spawnSync(
      'cmake',
      [
        ...['-S', join(folder, 'source'), '-B', folder, '-G', 'Ninja'],
        `-DCMAKE_CXX_COMPILER=${compilerThat(onNative, folder)}`,
      ],
      { encoding: 'utf8', env: { ...process.env, CXXFLAGS: '' } },
    );
    assert.equal(status, 0, stderr);
    return readFileSync(join(folder, 'flags'), 'utf8');
  } finally {
    rmSync(folder, { recursive: true });
  }
}

test("a compiler that warns of its own -march=native compiles the Eigen peer without warnings", () => {
  const warning = 'echo "warning: invalid feature combination: +avx10.1-256" >&2; given -Werror && exit 1';
  assert.equal(flagsOf(`given -w || { ${warning}; }`), '-march=native;-w');
});

test('a compiler without -march=native compiles the Eigen peer without it', () => {
  assert.equal(flagsOf('echo "unknown argument" >&2; exit 1'), '');
});

test('warnings are errors in CI only', () => {
  const warningsAsErrors = (ci) => {
    const env = { ...process.env, CI: ci };
    if (ci === undefined) delete env.CI;
    const { status, stdout, stderr } = spawnSync('cmake', ['--preset', 'native', '-N'], { cwd: root, encoding: 'utf8', env });
    assert.equal(status, 0, stderr);
    return /CMAKE_COMPILE_WARNING_AS_ERROR="(.*)"/.exec(stdout)?.[1];
  };
  assert.equal(warningsAsErrors('true'), 'true');
  assert.equal(warningsAsErrors(undefined), '');
});
