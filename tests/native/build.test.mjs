// The build with unusual compilers, downloads and warnings.
//
//   node --test tests/native/build.test.mjs        after the set-up

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { failOnWarnings } from '../../native/dev/build.mjs';
import { NEEDS, missingFor } from '../../native/dev/needs.mjs';

const root = fileURLToPath(new URL('../..', import.meta.url));
const compiler = JSON.parse(readFileSync(join(root, 'build/toolchain/manifest.json'), 'utf8')).cxx.path;

/** A fake compiler in `folder`: for -march=native it runs the shell code `onNative`. */
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

/** The flags that multihead_machine_flags() finds for the compiler of compilerThat(). */
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
      [...['-S', join(folder, 'source'), '-B', folder, '-G', 'Ninja'], `-DCMAKE_CXX_COMPILER=${compilerThat(onNative, folder)}`],
      { encoding: 'utf8', env: { ...process.env, CXXFLAGS: '' } },
    );
    assert.equal(status, 0, stderr);
    return readFileSync(join(folder, 'flags'), 'utf8');
  } finally {
    rmSync(folder, { recursive: true });
  }
}

test('a compiler whose -march=native causes warnings compiles the Eigen peer without warnings', () => {
  const warning = 'echo "warning: invalid feature combination: +avx10.1-256" >&2; given -Werror && exit 1';
  assert.equal(flagsOf(`given -w || { ${warning}; }`), '-march=native;-w');
});

test('a compiler without -march=native compiles the Eigen peer without it', () => {
  assert.equal(flagsOf('echo "unknown argument" >&2; exit 1'), '');
});

test('a download must have the expected checksum, and is then used', () => {
  const folder = mkdtempSync(join(tmpdir(), 'multihead-fetch-'));
  try {
    mkdirSync(join(folder, 'library-1.0'));
    writeFileSync(join(folder, 'library-1.0', 'library.h'), '#pragma once\n');
    const archive = join(folder, 'library.tar.gz');
    assert.equal(spawnSync('tar', ['-czf', archive, '-C', folder, 'library-1.0']).status, 0);
    const sum = createHash('sha256').update(readFileSync(archive)).digest('hex');
    const fetch = (expected) => {
      const lines = [
        'cmake_minimum_required(VERSION 3.25)',
        'project(fetch LANGUAGES NONE)',
        `include("${join(root, 'src/fetch.cmake')}")`,
        `multihead_fetch(library "file://${archive}" ${expected} "Install the library.")`,
        'file(WRITE "${CMAKE_BINARY_DIR}/found" "${library_SOURCE_DIR}")',
      ];
      writeFileSync(join(folder, 'CMakeLists.txt'), lines.join('\n'));
      // Use Ninja, because a bare machine has no Make; the set-up installs Ninja.
      const command = ['-G', 'Ninja', '-S', folder, '-B', join(folder, expected)];
      return spawnSync('cmake', command, { encoding: 'utf8' });
    };
    assert.equal(fetch(sum).stderr, '');
    const found = readFileSync(join(folder, sum, 'found'), 'utf8');
    assert.equal(readFileSync(join(found, 'library.h'), 'utf8'), '#pragma once\n');
    const { status, stderr } = fetch('0'.repeat(64));
    assert.equal(status, 1);
    const said = stderr.replace(/\s+/g, ' ');
    assert.ok(said.includes(`its SHA-256 is ${sum}, expected 000`) && said.includes('Install the library.'), stderr);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('warnings are errors in CI only, and of compilers only', () => {
  const warned = '[2/9] Building\na.cc:1:2: warning: unused variable [-Wunused-variable]\n';
  assert.throws(() => failOnWarnings(warned, true), /a\.cc:1:2: warning: unused variable/);
  failOnWarnings(warned, false);
  failOnWarnings('CMake Warning: none of ours\nemcc: warning: slow\n', true);
});

const nothing = Object.fromEntries(Object.keys(NEEDS).map((key) => [key, null]));

test('each purpose of the set-up includes those before it', () => {
  const [start, quick, test, mpi, all] = ['start', 'quick', 'test', 'mpi', 'all'].map((purpose) => missingFor(purpose, nothing));
  assert.ok(start.includes('emscripten') && !start.includes('cxx'));
  assert.ok(quick.includes('cxx') && !quick.includes('chromium') && !quick.includes('firefox'));
  assert.ok(start.every((key) => quick.includes(key)));
  assert.deepEqual(
    quick.filter((key) => !test.includes(key)),
    ['headlessShell'],
  ); // the other purposes have Chromium itself
  assert.ok(test.includes('chromium') && test.includes('firefox') && !test.includes('mpi') && !test.includes('arm64'));
  assert.deepEqual(
    mpi.filter((key) => !test.includes(key)),
    ['mpi'],
  );
  assert.deepEqual(
    all.filter((key) => !mpi.includes(key)),
    ['arm64', 'webkit'],
  );
});

test('what npm run docs needs is no part of other set-ups', () => {
  assert.deepEqual(missingFor('docs', nothing), ['doxygen']);
  for (const purpose of ['start', 'quick', 'test', 'all']) assert.ok(!missingFor(purpose, nothing).includes('doxygen'), purpose);
});

test('the build names its parts and its option when it is given another', () => {
  const build = (...words) => spawnSync(process.execPath, [join(root, 'native/dev/build.mjs'), ...words], { encoding: 'utf8' });
  for (const words of [['pages'], ['page', 'native'], ['constructor'], ['page', '--peer']]) {
    const { status, stderr } = build(...words);
    assert.equal(status, 2, words.join(' '));
    assert.match(stderr.trim(), new RegExp(`^Build what\\? Expected all, native, page, and --peers or not, got ${words.join(' ')}`), words.join(' '));
  }
});
