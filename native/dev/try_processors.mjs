// `npm run try-processors [-- NAME …]`: compiles everything for other processors, systems and compilers in a Debian of its
// own, and runs it there: the golden cases, the unit tests, and 2000 random calls. A NAME selects the targets that begin
// with it; without one, all run, which takes hours. Needs root and debootstrap, and ends by itself.
//
//   --list          prints the targets, and the tests that each leaves out
//   --random N      random calls instead of 2000
//
// Programs run under qemu's user-mode emulation, or under Wine. build/processors/ keeps the roots, the builds, and the
// result of each target, so that the table at the end has all that ran; it is removed by hand.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { cp } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { checkRootCanBeMade, commandIn, makeBareRoot } from './bare_root.mjs';
import { ROOT } from './build.mjs';
import { SetupError, UsageError, run, say, step } from './console.mjs';
import { buildFolder, completeFolder } from './files.mjs';
import { conformanceCounts, googleTestCounts, runTests } from './outcomes.mjs';
import { TARGETS, TOOLS } from './processors/targets.mjs';
import { runAsProgram } from './program.mjs';

const FOLDER = join(ROOT, 'build', 'processors');
const HEADERS = join(FOLDER, 'headers');
const RESULTS = join(FOLDER, 'results.json');
const RECIPE = 1;
const PROGRAMS = ['multihead-conformance', 'multihead-trace', 'multihead-model', 'multihead-train'];
/** Random calls of everything but the oracle, which the second filter leaves out of the unit tests. */
const RANDOM = '*OnRandomCalls*';

const rootOf = (suite) => join(FOLDER, suite);
const inside = (suite, script, options) => run(commandIn(rootOf(suite), `cd ${ROOT} && ${script}`, ROOT), options);

async function makeRoot(suite) {
  if (completeFolder(rootOf(suite), RECIPE)) return;
  await step(`Debian ${suite}`, () =>
    buildFolder(rootOf(suite), RECIPE, {}, async (partial) => {
      await makeBareRoot(suite, partial);
      await run(commandIn(partial, 'apt-get update'));
    }),
  );
}

const install = (suite, packages) => inside(suite, `apt-get install -y --no-install-recommends ${packages.join(' ')}`);

/** Copies the libraries of headers out of Debian 13, for cross compilers and for Debian 12, whose Highway is older. */
async function makeHeaders() {
  if (completeFolder(HEADERS, RECIPE)) return;
  await makeRoot('trixie');
  await install('trixie', [...TOOLS, 'libhwy-dev']);
  await buildFolder(HEADERS, RECIPE, {}, async (partial) => {
    const from = join(rootOf('trixie'), 'usr', 'include');
    for (const [name, path] of Object.entries({ hwy: 'hwy', Eigen: 'eigen3/Eigen', nlohmann: 'nlohmann', CLI: 'CLI' })) {
      await cp(join(from, path), join(partial, name), { recursive: true });
    }
  });
}

/** The options of CMake for a build. One SIMD target and -O1: emulated programs compile longer than they run. */
function optionsOf({ compiler, cross, flags = '', linkFlags, libraries, headersOnly, unite = true, ownGoogleTest = false }) {
  const options = {
    CMAKE_BUILD_TYPE: 'Release',
    CMAKE_CXX_FLAGS_RELEASE: '-O1 -DNDEBUG',
    CMAKE_COMPILE_WARNING_AS_ERROR: 'ON',
    CMAKE_CXX_COMPILER: cross?.compiler ?? compiler,
    CMAKE_CXX_FLAGS: flags,
    MULTIHEAD_UNITE: unite ? 'ON' : 'OFF',
    MULTIHEAD_FEW_TARGETS: 'ON',
    MULTIHEAD_OPENMP: cross || headersOnly ? 'OFF' : 'ON',
    CMAKE_DISABLE_FIND_PACKAGE_MPI: 'ON',
  };
  if (cross || headersOnly) options.MULTIHEAD_HEADERS = HEADERS;
  if (ownGoogleTest) options.MULTIHEAD_GOOGLETEST_SOURCE = '/usr/src/googletest';
  if (linkFlags) options.CMAKE_EXE_LINKER_FLAGS = linkFlags;
  if (libraries) options.CMAKE_CXX_STANDARD_LIBRARIES = libraries;
  if (cross) {
    options.CMAKE_SYSTEM_NAME = cross.system;
    options.CMAKE_SYSTEM_PROCESSOR = cross.processor;
    if (cross.triple) options.CMAKE_CXX_COMPILER_TARGET = cross.triple;
  }
  return Object.entries(options).map(([name, value]) => `"-D${name}=${value}"`);
}

/** Configures and builds, with warnings as errors; returns the build's folder. */
async function build(target, first) {
  const folder = join(FOLDER, first.name);
  const { suite, packages, cross, headersOnly, prepare } = target.build;
  // Google Benchmark is no library of headers.
  const outputs = ['multihead_tests', ...PROGRAMS, ...(cross || headersOnly ? [] : ['multihead-bench'])];
  mkdirSync(folder, { recursive: true });
  await step(`${target.name}: packages`, async () => {
    await makeRoot(suite);
    await makeHeaders();
    await install(suite, [...TOOLS, ...packages]);
    if (prepare) await inside(suite, `sh ${prepare}`);
  });
  await step(`${target.name}: build`, async (_, progress) => {
    const log = [];
    const onOutput = (text) => {
      log.push(text);
      progress(/\[\d+\/\d+\]/g.exec(text)?.[0] ?? '');
    };
    try {
      await inside(suite, `cmake -G Ninja -S . -B ${folder} ${optionsOf(target.build).join(' ')}`, { onOutput });
      await inside(suite, `ninja -C ${folder} -k 0 -j${availableParallelism()} ${outputs.join(' ')}`, { onOutput });
    } catch (error) {
      const first = /^.*\berror: .*(?:\n.*){0,3}/m.exec(log.join(''))?.[0];
      if (first) say(first);
      throw error;
    } finally {
      writeFileSync(join(folder, 'build.log'), log.join(''));
    }
  });
  return folder;
}

/** Runs one program of a build and counts its tests. */
function runProgram({ build: { suite }, run: emulator, suffix = '' }, program, words, file, counts, cases) {
  // OpenMP's threads sleep while they wait, as in `npm test`: the machine may be at work besides.
  const command = `OMP_WAIT_POLICY=passive WINEDEBUG=-all MULTIHEAD_RANDOM_CASES=${cases} ${emulator} ${program}${suffix} ${words}`;
  return runTests(commandIn(rootOf(suite), `cd ${ROOT} && ${command}`, ROOT), file, counts);
}

/** Builds a target and runs it. `keep` is called with what has been counted so far. */
async function tryTarget(target, randomCalls, keep) {
  const first = TARGETS.find((other) => other.build === target.build);
  const folder = await build(target, first);
  const command = target.build.cross?.compiler ?? target.build.compiler;
  // g++'s -dumpversion may print the first number alone, and clang has no -dumpfullversion.
  const version = await inside(target.build.suite, `${command} -dumpfullversion 2>/dev/null || ${command} -dumpversion`);
  const result = { compiler: `${command} ${version.trim()}` };
  const count = async (what, work) => {
    await step(`${target.name}: ${what}`, async (tell) => {
      const outcome = await work();
      result[what] = { passed: outcome.passed, failed: outcome.failed, skipped: outcome.skipped.length };
      if (what === 'random calls') result[what].calls = randomCalls;
      keep(result);
      tell(`${outcome.passed} passed, ${outcome.failed} failed`);
      writeFileSync(join(folder, `${target.name} ${what}.log`), outcome.output);
      for (const { name, message } of outcome.failures) say(`    ${name}: ${message.split('\n', 1)[0]}`);
    });
  };
  const tests = (filter, file, cases) => {
    const path = join(folder, file);
    const words = `--gtest_brief=1 --gtest_output=json:${path} '--gtest_filter=${filter}'`;
    return runProgram(target, join(folder, 'tests', 'multihead_tests'), words, path, googleTestCounts, cases);
  };
  const left = Object.keys(target.notRun).join(':');
  await count('golden cases', () =>
    runProgram(target, join(folder, 'native', 'multihead-conformance'), 'tests/conformance', null, conformanceCounts, 1),
  );
  await count('unit tests', () => tests(`-${left}`, 'tests.json', target.run ? 1 : 20));
  if (randomCalls > 0) await count('random calls', () => tests(`${RANDOM}:-Reference*`, 'random.json', randomCalls));
  return result;
}

const PARTS = ['golden cases', 'unit tests', 'random calls'];

function cell(counts) {
  if (!counts) return 'not run';
  return `${counts.passed} of ${counts.passed + counts.failed}${counts.calls ? `, ${counts.calls} calls each` : ''}`;
}

function printTable(results) {
  say('\n| target | compiler | golden cases | unit tests | tests of random calls |\n|---|---|---|---|---|');
  for (const [name, { compiler, ...result }] of results) {
    say(`| ${[name, compiler, ...PARTS.map((part) => cell(result[part]))].join(' | ')} |`);
  }
}

function printList() {
  for (const { name, notRun } of TARGETS) {
    say(name);
    for (const [filter, reason] of Object.entries(notRun)) say(`    without ${filter}: ${reason}`);
  }
}

runAsProgram(import.meta.url, async (...args) => {
  const options = { list: { type: 'boolean' }, random: { type: 'string', default: '2000' } };
  const { values, positionals } = parseArgs({ args, options, allowPositionals: true });
  if (values.list) return printList();
  const unknown = positionals.find((name) => !TARGETS.some((target) => target.name.startsWith(name)));
  if (unknown !== undefined) throw new UsageError(`Expected targets, got ${unknown}: ${TARGETS.map(({ name }) => name).join(', ')}`);
  const randomCalls = Number(values.random);
  if (!Number.isInteger(randomCalls) || randomCalls < 0) throw new UsageError(`--random: expected a number, got ${values.random}`);
  checkRootCanBeMade();
  const chosen = TARGETS.filter(({ name }) => !positionals.length || positionals.some((begin) => name.startsWith(begin)));
  const results = new Map(existsSync(RESULTS) ? Object.entries(JSON.parse(readFileSync(RESULTS, 'utf8'))) : []);
  let failed = 0;
  for (const target of chosen) {
    const keep = (result) => {
      results.set(target.name, result);
      writeFileSync(RESULTS, `${JSON.stringify(Object.fromEntries(results), null, 2)}\n`);
    };
    try {
      const result = await tryTarget(target, randomCalls, keep);
      failed += PARTS.reduce((sum, part) => sum + (result[part]?.failed ?? 0), 0);
    } catch (error) {
      if (!(error instanceof SetupError)) throw error;
      say(`\n${target.name}: ${error.message}\n`);
      failed += 1;
    }
  }
  printTable(results);
  process.exitCode = failed ? 1 : 0;
});
