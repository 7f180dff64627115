// The C++ library in other projects: with CMake, from its sources and installed; with pkg-config; static and shared;
// with g++ and clang++.
//
//   node --test tests/packaging/cmake.test.mjs        after npm run build

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { atLeast, programWithVersion } from '../../native/dev/find.mjs';
import { hasMpirun, mpirun } from '../native/mpirun.mjs';

const root = fileURLToPath(new URL('../..', import.meta.url));
const at = (...path) => join(root, 'build', ...path);
const folder = at('consumer');
const prefixes = { static: join(folder, 'static'), shared: join(folder, 'shared') };
const kinds = Object.keys(prefixes);
const { cxx } = JSON.parse(readFileSync(at('toolchain', 'manifest.json'), 'utf8'));
const findsHighway = `-DCMAKE_TOOLCHAIN_FILE=${at('toolchain', 'native.cmake')}`;
const { version } = JSON.parse(readFileSync(join(root, 'bindings', 'package.json'), 'utf8'));

/** The compiler that builds the library, and other compilers on this machine that a consumer may have. */
const compilers = new Map([[cxx.id === 'GNU' ? 'g++' : 'clang++', cxx.path]]);
for (const [name, minimum] of [
  ['g++', '12'],
  ['clang++', '16'],
]) {
  const found = await programWithVersion(name);
  if (found && atLeast(found.version, minimum) && !compilers.has(name)) compilers.set(name, found.path);
}

function output(command, options = {}) {
  const [program, ...words] = command;
  const { status, stdout, stderr, error } = spawnSync(program, words, { encoding: 'utf8', cwd: root, ...options });
  assert.equal(status, 0, `${command.join(' ')}\n${stdout}${stderr}${error ?? ''}`);
  return stdout;
}

const environment = (more) => ({ ...process.env, ...more });
const prints = (program, env = {}) => assert.match(output([program], { env: environment(env) }), /^out\[0\] = 2 on /);

/** Builds a project. CMake is told the location of multihead, but not of Highway. */
function buildConsumer(kind, name, compiler, project = 'native/consumer') {
  const program = project.split('/').slice(1).join('-');
  const build = join(folder, `${kind}-${name}${program.replace('consumer', '')}`);
  const told = [`-Dmultihead_ROOT=${prefixes[kind]}`, `-DCMAKE_CXX_COMPILER=${compiler}`, '-DCMAKE_BUILD_TYPE=Release'];
  output(['cmake', '-S', project, '-B', build, '-G', 'Ninja', ...told]);
  output(['cmake', '--build', build]);
  return join(build, program);
}

const pkgConfigPath = (kind) => environment({ PKG_CONFIG_PATH: join(prefixes[kind], 'lib', 'pkgconfig') });

function buildByPkgConfig(kind, name, compiler) {
  const env = pkgConfigPath(kind);
  const flags = output(['pkg-config', '--cflags', '--libs', 'multihead'], { env }).trim().split(/\s+/);
  const program = join(folder, `${kind}-${name}-pkg-config`);
  output([compiler, 'native/consumer/main.cc', '-o', program, ...flags]);
  return program;
}

const builtWithMpi = existsSync(at('native', 'native', 'multihead-mpi'));
const noMpi = builtWithMpi && hasMpirun ? false : 'the build found no MPI, or there is no mpirun';
const noPkgConfig = spawnSync('pkg-config', ['--version']).error ? 'there is no pkg-config on this machine' : false;
/** Folders for the dynamic loader, because an installed Highway may be outside of its default folders. */
function libraryPath(kind) {
  const highway = ['x86_64', 'aarch64'].map((cpu) => at('toolchain', 'highway', 'usr', 'lib', `${cpu}-linux-gnu`));
  return { LD_LIBRARY_PATH: [join(prefixes[kind], 'lib'), ...highway].join(':') };
}

const guide = readFileSync(join(root, 'native', 'guides', 'library.md'), 'utf8');
const blocks = (language) => [...guide.matchAll(/^```(\w+)\n([\s\S]*?)^```/gm)].filter(([, one]) => one === language).map(([, , code]) => code);
const app = join(folder, 'app');

/** Checks the output of the guide's program. */
const appPrints = (program, env = {}) => assert.match(output([program], { env: environment(env) }), /^2\n6 tokens\nsoftcap: expected .*, got -1\n$/);

test('the guide is of one screen, and its other command builds with options that exist', () => {
  assert.ok(guide.split('\n').length < 125);
  assert.deepEqual([blocks('cpp').length, blocks('cmake').length, blocks('sh').length], [1, 1, 3]);
  const listed = readFileSync(join(root, 'CMakeLists.txt'), 'utf8');
  for (const [, option] of blocks('sh')[0].matchAll(/-D(\w+)=/g)) assert.ok(listed.includes(option), option);
});

test('a static library is installed', () => {
  rmSync(prefixes.static, { recursive: true, force: true });
  output(['cmake', '--install', at('native'), '--prefix', prefixes.static, '--strip']);
});

test('the guide: FetchContent builds a shared library as part of another project', () => {
  rmSync(app, { recursive: true, force: true });
  mkdirSync(app, { recursive: true });
  writeFileSync(join(app, 'app.cc'), blocks('cpp')[0]);
  writeFileSync(join(app, 'CMakeLists.txt'), blocks('cmake')[0]);
  // Build for one SIMD target and with little optimization: only symbols and links are checked.
  const quick = ['-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG', '-DCMAKE_CXX_FLAGS=-DHWY_COMPILE_ONLY_STATIC'];
  const build = join(folder, 'shared-build');
  const options = [findsHighway, '-DBUILD_SHARED_LIBS=ON', '-DMULTIHEAD_UNITE=ON', '-DCMAKE_BUILD_TYPE=Release', ...quick];
  output(['cmake', '-S', app, '-B', build, '-G', 'Ninja', ...options], {
    env: environment({ MULTIHEAD_SOURCES: root }),
  });
  output(['cmake', '--build', build]);
  appPrints(join(build, 'app'));
  rmSync(prefixes.shared, { recursive: true, force: true });
  output(['cmake', '--install', build, '--prefix', prefixes.shared]);
});

test('a shared library by itself needs no further option', () => {
  const build = mkdtempSync(join(tmpdir(), 'multihead-shared-'));
  try {
    output(['cmake', '-S', root, '-B', build, '-G', 'Ninja', findsHighway, '-DBUILD_SHARED_LIBS=ON']);
    assert.match(output(['ninja', '-C', build, '-n']), /Linking CXX shared library src\/libmultihead/);
  } finally {
    rmSync(build, { recursive: true });
  }
});

for (const kind of kinds) {
  for (const [name, compiler] of compilers) {
    test(`find_package: ${kind}, ${name}`, () => prints(buildConsumer(kind, name, compiler)));

    test(`multihead::distributed on two processes: ${kind}, ${name}`, { skip: noMpi }, () => {
      const program = buildConsumer(kind, name, compiler, 'native/consumer/distributed');
      const { status, stdout, stderr } = mpirun(2, program);
      assert.equal(status, 0, stdout + stderr);
      const lines = stdout.trim().split('\n').sort();
      assert.deepEqual(lines, ['rank 0 of 2: as one process', 'rank 1 of 2: as one process']);
    });

    test(`pkg-config: ${kind}, ${name}`, { skip: noPkgConfig }, () => {
      prints(buildByPkgConfig(kind, name, compiler), libraryPath(kind));
    });
  }

  test(`multihead::cuda is found: ${kind}`, () => {
    const project = join(folder, 'with-cuda');
    mkdirSync(project, { recursive: true });
    writeFileSync(
      join(project, 'main.cc'),
      `#include <multihead/cuda.h>
       #include <cstdio>
       int main() {
         const multihead::Status status = multihead::cuda::available();
         std::puts(status.ok() ? "available" : status.message().c_str());
       }`,
    );
    writeFileSync(
      join(project, 'CMakeLists.txt'),
      `cmake_minimum_required(VERSION 3.25)
       project(with_cuda LANGUAGES CXX)
       find_package(multihead 0.1 REQUIRED COMPONENTS cuda)
       add_executable(with-cuda main.cc)
       target_link_libraries(with-cuda PRIVATE multihead::cuda)`,
    );
    const build = join(folder, `${kind}-with-cuda`);
    output(['cmake', '-S', project, '-B', build, '-G', 'Ninja', `-Dmultihead_ROOT=${prefixes[kind]}`]);
    output(['cmake', '--build', build]);
    assert.match(output([join(build, 'with-cuda')]), /^(available|device: expected .*)\n$/);
  });

  test(`safetensors and lab are components, and one that does not exist is named: ${kind}`, () => {
    const project = join(folder, 'components');
    mkdirSync(project, { recursive: true });
    writeFileSync(
      join(project, 'CMakeLists.txt'),
      `cmake_minimum_required(VERSION 3.25)
       project(components LANGUAGES CXX)
       find_package(multihead 0.1 REQUIRED COMPONENTS \${COMPONENT})
       get_target_property(type multihead::\${COMPONENT} TYPE)`,
    );
    const configure = (component) => {
      const options = [`-Dmultihead_ROOT=${prefixes[kind]}`, `-DCOMPONENT=${component}`];
      const build = join(folder, `${kind}-components`);
      return spawnSync('cmake', ['-S', project, '-B', build, '-G', 'Ninja', ...options], { encoding: 'utf8' });
    };
    for (const component of ['safetensors', 'lab', 'models']) {
      const good = configure(component);
      assert.equal(good.status, 0, good.stderr);
    }
    const wrong = configure('safetensor');
    assert.equal(wrong.status, 1);
    assert.match(wrong.stderr.replace(/\s+/g, ' '), /are lab, safetensors, models, distributed and cuda; it has no "safetensor"/);
  });

  test(`the guide's command without CMake: ${kind}`, { skip: noPkgConfig }, () => {
    const command = blocks('sh')[1];
    output(['sh', '-c', command.replace('g++', cxx.path)], { cwd: app, env: environment({ PREFIX: prefixes[kind] }) });
    appPrints(join(app, 'app'), libraryPath(kind));
  });
}

for (const kind of kinds) {
  for (const [name, body] of [
    ['safetensors', 'return multihead::Safetensors::parse({}, *new multihead::Safetensors).ok();'],
    [
      'lab',
      `multihead::Experiment made;
       const bool skips = !multihead::without_out_proj({}).config().out_proj;
       return !skips || !multihead::Experiment::create({}, made).ok() || multihead::head_statistics({}, {}, {}).ok();`,
    ],
  ]) {
    test(`pkg-config has multihead-${name}: ${kind}`, { skip: noPkgConfig }, () => {
      const env = pkgConfigPath(kind);
      const flags = output(['pkg-config', '--cflags', '--libs', `multihead-${name}`], { env })
        .trim()
        .split(/\s+/);
      const source = join(folder, `${name}.cc`);
      writeFileSync(source, `#include <multihead/${name}.h>\nint main() { ${body} }`);
      const program = join(folder, `${kind}-${name}`);
      output([cxx.path, source, '-o', program, ...flags]);
      output([program], { env: environment(libraryPath(kind)) });
    });
  }
}

test('every installed header compiles alone, and names nothing that is not installed', () => {
  const include = join(prefixes.static, 'include');
  const names = readdirSync(join(include, 'multihead')).sort();
  assert.deepEqual(names, readdirSync(join(root, 'src', 'multihead')).sort());
  const source = join(folder, 'header.cc');
  const compile = (compiler, headers) => {
    writeFileSync(source, headers.map((name) => `#include <multihead/${name}>\n`).join(''));
    const warnings = ['-Wall', '-Wextra', '-Wpedantic', '-Werror'];
    output([compiler, '-std=c++20', '-fsyntax-only', ...warnings, `-I${include}`, source]);
  };
  for (const name of names) {
    compile(cxx.path, [name, name]);
    const text = readFileSync(join(include, 'multihead', name), 'utf8');
    assert.deepEqual(text.match(/\b(rules|engine|nn|cpu|reference|bindings)\/[\w./]+/g), null, name);
  }
  for (const compiler of compilers.values()) compile(compiler, names);
});

test('the version is one: of the headers, CMake, pkg-config and the npm package', () => {
  const source = join(folder, 'version.cc');
  const parts = ['MAJOR', 'MINOR', 'PATCH'].map((part) => `MULTIHEAD_VERSION_${part}`);
  writeFileSync(source, `#include <multihead/version.h>\nversion ${parts.join(' ')}\n`);
  const expanded = output([cxx.path, '-E', '-P', `-I${join(prefixes.static, 'include')}`, source]);
  assert.equal(expanded.trim(), `version ${version.replaceAll('.', ' ')}`);
  for (const kind of kinds) {
    const config = join(prefixes[kind], 'lib', 'cmake', 'multihead', 'multihead-config-version.cmake');
    assert.match(readFileSync(config, 'utf8'), new RegExp(`set\\(PACKAGE_VERSION "${version}"\\)`));
    if (noPkgConfig) continue;
    assert.equal(output(['pkg-config', '--modversion', 'multihead'], { env: pkgConfigPath(kind) }).trim(), version);
  }
});

for (const kind of kinds) {
  test(`multihead/c.h in C11: ${kind}`, { skip: noPkgConfig }, () => {
    const env = pkgConfigPath(kind);
    const flags = output(['pkg-config', '--cflags-only-I', '--libs', 'multihead'], { env }).trim().split(/\s+/);
    const program = join(folder, `${kind}-c`);
    const asC = ['-x', 'c', '-std=c11', '-Wall', '-Wextra', '-pedantic', '-Werror', '-DMULTIHEAD_C_MAIN'];
    const includes = flags.filter((flag) => flag.startsWith('-I'));
    output([cxx.path, ...asC, ...includes, '-c', 'tests/engine/c/program.c', '-o', `${program}.o`]);
    // A static library needs the standard library of C++, which its compiler links.
    output([cxx.path, `${program}.o`, '-o', program, ...flags]);
    assert.equal(output([program], { env: environment(libraryPath(kind)) }), 'multihead in C\n');
  });
}

const onElf = { skip: process.platform === 'linux' ? false : 'symbols are read from ELF files only' };
const sharedLibrary = join(prefixes.shared, 'lib', 'libmultihead.so');

test('the shared library has a versioned name', onElf, () => {
  assert.ok(realpathSync(sharedLibrary).endsWith(`libmultihead.so.${version}`));
  const [major, minor] = version.split('.');
  assert.ok(output(['readelf', '-d', sharedLibrary]).includes(`[libmultihead.so.${major}.${minor}]`));
});

test('a program that was not linked with the shared library loads it', onElf, () => {
  const program = join(folder, 'load-c');
  const asC = ['-x', 'c', '-std=c11', '-Wall', '-Wextra', '-pedantic', '-Werror'];
  output([cxx.path, ...asC, `-I${join(prefixes.shared, 'include')}`, 'tests/packaging/load.c', '-o', program, '-ldl']);
  assert.equal(output([program, sharedLibrary], { env: environment(libraryPath('shared')) }), 'loaded\n');
});

test('the shared library exports every function of multihead/c.h', onElf, () => {
  const header = readFileSync(join(root, 'src', 'multihead', 'c.h'), 'utf8');
  const declared = [...header.matchAll(/^[\w *]+[ *](multihead_\w+)\(/gm)].map(([, name]) => name).sort();
  const exported = exportedBy(sharedLibrary)
    .filter((name) => /^multihead_\w+$/.test(name))
    .sort();
  assert.ok(declared.length > 15);
  assert.deepEqual(exported, declared);
});

/** The names that a shared library exports, apart from instantiations of the standard library's templates. */
const exportedBy = (library) =>
  output(['nm', '-DC', '--defined-only', '--format=posix', library])
    .trim()
    .split('\n')
    .map((line) => /^(.*) [A-Za-z] [0-9a-f]+/.exec(line)?.[1] ?? line)
    .filter((name) => !/^[^(]*\bstd::/.test(name));

/** Internal functions that the other libraries call, marked by src/rules/shared.h. */
const SHARED_INTERNALS = `
  engine::Buffer::reserve engine::Scratch::reserve engine::release
  engine::Team::computes_own engine::Team::divides engine::Team::first_output engine::Team::member_left engine::team_of
  engine::add engine::copy_rows engine::cross_entropy engine::linear_backward engine::norm_backward engine::scale_heads
  cpu::activation_backward_range nn::ParameterList::add nn::Parameters::make
  engine::attention_params engine::backward_params engine::begin_backward engine::differentiate_sinks engine::end_backward engine::finish_plan
  engine::cached_rows engine::make_cache_call engine::merge_rows engine::option_error engine::pages_per_entry engine::plan_forward engine::plan_backward engine::printable
  engine::reserve_backward
  engine::rows_of engine::run engine::run_backward_job engine::run_block engine::run_jobs engine::stored_rows
  engine::transform_back engine::transform_rows engine::utf8_length
  engine::validate_apart engine::validate_backward engine::validate_call engine::validate_exact engine::validate_capture engine::validate_inputs engine::validate_merge
  engine::validate_options engine::validate_outputs engine::validate_varlen engine::validate_varlen_backward
  engine::validate_varlen_outputs engine::validate_varlen_tensors engine::validate_positions engine::validate_rotate
  engine::shape_error engine::validate_rank`
  .trim()
  .split(/\s+/)
  .map((name) => `multihead::${name}`);

test('the shared libraries export what the public headers declare, and what they call of each other', onElf, () => {
  const isPublic = (name) => /^multihead_/.test(name) || /^multihead::(?!(engine|nn|cpu|rules|reference|N_[A-Z])\w*::)/.test(name);
  /** The name of a function, without its result, its arguments and its template arguments. */
  const plain = (name) => name.replace(/^((vtable|typeinfo|typeinfo name) for |multihead::Status (?=multihead::))/, '').replace(/[<([].*/, '');
  const library = (suffix) => exportedBy(sharedLibrary.replace('.so', `${suffix}.so`));
  const [ours, ofSafetensors] = [library(''), library('_safetensors')];
  const internal = (names) => [...new Set(names.map(plain).filter((name) => !isPublic(name)))].sort();
  assert.deepEqual(internal(ours), SHARED_INTERNALS.sort());
  const forModels = ['kind_of_file', 'parse_safetensors_file', 'parse_safetensors_header'];
  assert.deepEqual(
    internal(ofSafetensors),
    forModels.map((name) => `multihead::nn::${name}`),
  );
  assert.ok(ours.length < 300, `${ours.length} symbols`);
  for (const name of ['multihead::attention(', 'multihead::KVCache::append(', 'multihead::Transformer::forward(']) {
    assert.ok(
      ours.some((one) => one.startsWith(name)),
      name,
    );
  }
  assert.ok(ofSafetensors.some((one) => one.startsWith('multihead::Safetensors::parse(')));
  for (const component of ['distributed', 'cuda']) {
    const header = readFileSync(join(root, 'src', 'multihead', `${component}.h`), 'utf8');
    const names = library(`_${component}`)
      .map(plain)
      .filter((name) => !name.includes('::Internals::'));
    assert.ok(names.includes(`multihead::${component}::attention`));
    for (const name of names) {
      assert.ok(name.startsWith(`multihead::${component}::`), name);
      assert.ok(header.includes(`${name.split('::').at(-1)}(`), name);
    }
  }
});

test('without Highway and without a network the build reports what to install or to pass', () => {
  const build = mkdtempSync(join(tmpdir(), 'multihead-no-highway-'));
  try {
    const without = ['-DCMAKE_DISABLE_FIND_PACKAGE_hwy=ON', '-DMULTIHEAD_TESTS=OFF', '-DMULTIHEAD_PROGRAMS=OFF'];
    const { status, stderr } = spawnSync('cmake', ['-S', root, '-B', build, '-G', 'Ninja', `-DCMAKE_CXX_COMPILER=${cxx.path}`, ...without], {
      encoding: 'utf8',
      env: environment({ https_proxy: 'http://127.0.0.1:9' }),
    });
    assert.equal(status, 1);
    const said = stderr.replace(/\s+/g, ' ');
    assert.match(said, /highway\/archive\/refs\/tags\/1\.2\.0\.tar\.gz cannot be used/);
    assert.match(said, /libhwy-dev.*-Dhwy_ROOT=PREFIX.*-DFETCHCONTENT_SOURCE_DIR_HWY=FOLDER/);
  } finally {
    rmSync(build, { recursive: true });
  }
});
