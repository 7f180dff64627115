// The installed C++ library in another project: with CMake and with pkg-config, static and shared.
//
//   node --test tests/packaging/cmake.test.mjs        after npm run build

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));
const at = (...path) => join(root, 'build', ...path);
const folder = at('consumer');
const prefixes = { static: join(folder, 'static'), shared: join(folder, 'shared') };
const { cxx } = JSON.parse(readFileSync(at('toolchain', 'manifest.json'), 'utf8'));
const findsHighway = `-DCMAKE_TOOLCHAIN_FILE=${at('toolchain', 'native.cmake')}`;

function output(command, options = {}) {
  const [program, ...words] = command;
  const { status, stdout, stderr, error } = spawnSync(program, words, { encoding: 'utf8', cwd: root, ...options });
  assert.equal(status, 0, `${command.join(' ')}\n${stdout}${stderr}${error ?? ''}`);
  return stdout;
}

const prints = (program, env = {}) =>
  assert.match(output([program], { env: { ...process.env, ...env } }), /^out\[0\] = 2 on /);

/** Builds native/consumer; it is told where multihead is installed, but not where Highway is. */
function buildConsumer(kind) {
  const build = join(folder, `${kind}-cmake`);
  const told = [`-Dmultihead_ROOT=${prefixes[kind]}`, `-DCMAKE_CXX_COMPILER=${cxx.path}`, '-DCMAKE_BUILD_TYPE=Release'];
  output(['cmake', '-S', 'native/consumer', '-B', build, '-G', 'Ninja', ...told]);
  output(['cmake', '--build', build]);
  return join(build, 'consumer');
}

function buildByPkgConfig(kind) {
  const env = { ...process.env, PKG_CONFIG_PATH: join(prefixes[kind], 'lib', 'pkgconfig') };
  const flags = output(['pkg-config', '--cflags', '--libs', 'multihead'], { env }).trim().split(/\s+/);
  const program = join(folder, `${kind}-pkg-config`);
  output([cxx.path, 'native/consumer/main.cc', '-o', program, ...flags]);
  return program;
}

const noPkgConfig = spawnSync('pkg-config', ['--version']).error ? 'there is no pkg-config on this machine' : false;
/** The library folders of the linker: an installed Highway may be outside the loader's default folders. */
function libraryPath(kind) {
  const highway = ['x86_64', 'aarch64'].map((cpu) => at('toolchain', 'highway', 'usr', 'lib', `${cpu}-linux-gnu`));
  return { LD_LIBRARY_PATH: [join(prefixes[kind], 'lib'), ...highway].join(':') };
}

test('a static library: CMake', () => {
  rmSync(prefixes.static, { recursive: true, force: true });
  output(['cmake', '--install', at('native'), '--prefix', prefixes.static, '--strip']);
  prints(buildConsumer('static'));
});

test('a static library: pkg-config', { skip: noPkgConfig }, () => {
  prints(buildByPkgConfig('static'), libraryPath('static'));
});

test('a shared library: CMake', () => {
  // One SIMD target, hardly optimised: only its symbols and links are checked.
  const quick = ['-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG', '-DCMAKE_CXX_FLAGS=-DHWY_COMPILE_ONLY_STATIC'];
  const build = join(folder, 'shared-build');
  output(['cmake', '-S', root, '-B', build, '-G', 'Ninja', findsHighway, '-DBUILD_SHARED_LIBS=ON', ...quick]);
  output(['cmake', '--build', build]);
  rmSync(prefixes.shared, { recursive: true, force: true });
  output(['cmake', '--install', build, '--prefix', prefixes.shared]);
  prints(buildConsumer('shared'));
});

test('a shared library: pkg-config', { skip: noPkgConfig }, () => {
  prints(buildByPkgConfig('shared'), libraryPath('shared'));
});

const onElf = { skip: process.platform === 'linux' ? false : 'symbols are read from ELF files only' };

test('the shared library has a versioned name', onElf, () => {
  const library = join(prefixes.shared, 'lib', 'libmultihead.so');
  assert.match(realpathSync(library), /libmultihead\.so\.\d+\.\d+\.\d+$/);
  assert.match(output(['readelf', '-d', library]), /SONAME.*\[libmultihead\.so\.0\.1\]/);
});

test('the shared library exports what the public headers declare', onElf, () => {
  const library = join(prefixes.shared, 'lib', 'libmultihead.so');
  const names = output(['nm', '-DC', '--defined-only', '--format=posix', library])
    .trim()
    .split('\n')
    .map((line) => /^(.*) [A-Za-z] [0-9a-f]+/.exec(line)?.[1] ?? line);
  // Every library contains instantiations of the standard library's templates.
  const ours = names.filter((name) => !/^[^(]*\bstd::/.test(name));
  const isPublic = (name) => /^multihead::(?!(engine|nn|cpu|rules|reference|N_[A-Z])\w*::)/.test(name);
  const internal = ours.filter((name) => !isPublic(name.replace(/^(vtable|typeinfo|typeinfo name) for /, '')));
  assert.deepEqual(internal, []);
  assert.ok(ours.length < 250, `${ours.length} symbols`);
  for (const name of ['multihead::attention(', 'multihead::KVCache::append(', 'multihead::Transformer::forward(']) {
    assert.ok(ours.some((one) => one.startsWith(name)), name);
  }
});

test('without Highway and without a network the build reports what to install or to pass', () => {
  const build = mkdtempSync(join(tmpdir(), 'multihead-no-highway-'));
  try {
    const without = ['-DCMAKE_DISABLE_FIND_PACKAGE_hwy=ON', '-DMULTIHEAD_TESTS=OFF', '-DMULTIHEAD_PROGRAMS=OFF'];
    const { status, stderr } = spawnSync(
      'cmake',
      ['-S', root, '-B', build, '-G', 'Ninja', `-DCMAKE_CXX_COMPILER=${cxx.path}`, ...without],
      { encoding: 'utf8', env: { ...process.env, https_proxy: 'http://127.0.0.1:9' } },
    );
    assert.equal(status, 1);
    const said = stderr.replace(/\s+/g, ' ');
    assert.match(said, /highway\/archive\/refs\/tags\/1\.2\.0\.tar\.gz cannot be used/);
    assert.match(said, /libhwy-dev.*-Dhwy_ROOT=PREFIX.*-DFETCHCONTENT_SOURCE_DIR_HWY=FOLDER/);
  } finally {
    rmSync(build, { recursive: true });
  }
});
