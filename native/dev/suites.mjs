// The suites of `npm test`: how to run each, and which files decide its outcome.
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { emulatesArm64, onArm64 } from './arm64.mjs';
import { ROOT } from './build.mjs';
import { FUZZ_ENVIRONMENT, FUZZ_TARGETS, shortRun } from './fuzz.mjs';
import { conformanceCounts, fuzzCounts, googleTest, nodeTests, notBuilt, runTests, resultsFile, vitestCounts } from './outcomes.mjs';

const at = (...path) => join(ROOT, 'build', ...path);

/**
 * Tests the CUDA kernels without a GPU, in the emulator of tests/cuda: at most 40 random calls a test. The program by itself makes
 * up to 500.
 */
function cudaTests() {
  const program = at('native', 'tests', 'cuda', 'multihead_cuda_tests');
  if (existsSync(program)) return googleTest('cuda', [program], { MULTIHEAD_RANDOM_MOST: '40' });
  return notBuilt('CUDA kernels', 'no Boost.Context was found');
}

/** Runs the tests for ARM64 on an emulated processor, if they could be built. */
function emulatedTests() {
  const program = tests('arm64');
  if (existsSync(program)) return googleTest('arm64', [...onArm64(program), `--gtest_filter=-${NOT_EMULATED}`], emulated);
  return notBuilt('ARM64', emulatesArm64 ? 'no cross compiler and emulator for ARM64 were found' : 'this machine has an ARM64 processor');
}

// Run fewer random calls under the sanitizers: they check every memory access, so fewer calls find as much. Allocations
// that fail return null, as without sanitizers, because some tests exhaust memory on purpose.
const nullWhenExhausted = 'allocator_may_return_null=1';
const fewer = {
  MULTIHEAD_RANDOM_MOST: '15',
  ASAN_OPTIONS: nullWhenExhausted,
  TSAN_OPTIONS: nullWhenExhausted,
};
const tests = (preset) => at(preset, 'tests', 'multihead_tests');

const programTests = () =>
  readdirSync(join(ROOT, 'tests', 'native'))
    .filter((name) => name.endsWith('.test.mjs'))
    .map((name) => join('tests', 'native', name));

/** Runs a workspace's tests with Vitest: all files, or those that `chosen` gives as Vitest's arguments. */
function vitest(workspace, name, { chosen = [], env = {} } = {}) {
  const file = resultsFile(name);
  const reports = ['--reporter=default', '--reporter=json', `--outputFile.json=${file}`];
  const bail = process.env.MULTIHEAD_FAIL_FAST ? ['--bail=1'] : [];
  const command = [process.execPath, join(ROOT, 'node_modules', 'vitest', 'vitest.mjs'), 'run', ...reports, ...bail, ...chosen];
  return runTests(command, file, vitestCounts, { cwd: join(ROOT, workspace), env: { ...env, ...process.env } });
}

/** Runs the page's tests with these arguments of tests/browser/run.mjs, which writes this file. */
const browserTests = (file, ...chosen) => runTests([process.execPath, 'tests/browser/run.mjs', ...chosen], resultsFile(file), (counts) => counts);

const CASES = 'tests/conformance';
const LIBRARY = ['CMakeLists.txt', 'CMakePresets.json', 'src', 'native', 'tests', 'README.md'];
const PACKAGE = [
  'bindings',
  'native/dev/packages',
  'package.json',
  'package-lock.json',
  'README.md',
  'src/engine/error/messages.inc',
  'src/models/io',
  'src/nn/io',
  CASES,
];
const core = (preset, program = 'multihead_tests') => [`build/${preset}/tests/${program}`, CASES];

const nativeConformance = (preset) => ({
  uses: [`build/${preset}/native/multihead-conformance`, CASES],
  run: () => runTests([at(preset, 'native', 'multihead-conformance'), CASES], null, conformanceCounts),
});

/** Tests the kernels of a browser's GPU in Chromium, on SwiftShader. */
const gpuTests = (...chosen) => runTests([process.execPath, 'tests/gpu/run.mjs', ...chosen], resultsFile('gpu'), (counts) => counts);
const GPU = { uses: ['bindings/dist', 'bindings/test', 'tests/gpu', 'tests/browser/browsers.mjs', 'package-lock.json', CASES], after: ['package'] };

const PAGE = ['build/web', 'web', 'bindings/dist', 'tests/browser', 'native/dev', 'package-lock.json'];
const inBrowser = { after: ['page'], waits: true };

// `npm test` distinguishes the tests of the package and of the page that compare numbers from all others. A change of
// kernels alone runs the first, which use the built WebAssembly modules; the others use what the modules are made of,
// without the kernels. `npm test -- --all`, --again, a filter and CI make no such difference.
const WITHOUT_KERNELS = [...PACKAGE, 'web', 'tests/browser', 'CMakeLists.txt', 'CMakePresets.json', 'src', '!src/cpu', '!bindings/dist'];
const filesOf = (names) => names.map((name) => `test/${name}.test.ts`);
const NUMBERS = filesOf(['attention', 'attention_backward', 'kv_cache', 'linear', 'merge', 'varlen']);
const COMPUTED = [
  ...NUMBERS,
  ...filesOf(['attention_options', 'conformance', 'dropout', 'half', 'head_statistics', 'latent_attention', 'load', 'models']),
  ...filesOf(['module_backward', 'multi_head_attention', 'pool', 'prepared', 'prepared_backward', 'rope', 'transformer', 'varlen_backward']),
];
// The build that load() chooses in Node and in Chromium, with fewer random calls: the first calls of a kind find most faults.
// `npm test -- --all` makes all calls, and runs COMPUTED with the other build, which differs in its kernels alone.
const ONE_BUILD = { MULTIHEAD_TEST_BUILDS: 'relaxed', MULTIHEAD_RANDOM_CASES: '100', MULTIHEAD_KILL_ROUNDS: '10' };
// What publishing needs (packing twice, publint, bundlers, types) takes two minutes, a fifth of `npm test`.
const PACKED = 'test/package.test.ts';
// Run one random call of each kind: kernels on an emulated processor, or without SIMD, take 20 times as long, and one
// call finds any difference from x86.
const emulated = { MULTIHEAD_RANDOM_MOST: '1' };
// Tests that are slow and do not depend on the processor.
const ANY_PROCESSOR = [
  'Experiments.*:ExhaustedMemory.*:Team.*:ModelInATeam.*:Host.*:Agreement.*:Semaphores.*:Methods/*:Conformance.Any*:Attention.ScratchIsIndependentOfTheSequenceLength',
  '*.MeansOfEqualValuesStayWithinTheirBound/*',
].join(':');
// Tests left out on emulated processors: qemu ends when a process with threads forks.
const NOT_EMULATED = `*Fork*:StdThreads.ACallGoesOnWithTheThreadsThatCouldBeCreated:${ANY_PROCESSOR}`;

/**
 * The suites, the longest first. `uses`: the files and folders, relative to the checkout, that decide the outcome
 * besides the machine; with a ! before it, one inside of them that does not. `after`: the builds of test.mjs that it
 * needs. `waits`: it waits most of its time; other suites keep a core busy.
 * `in`: 'quick' if only `npm test` runs it, 'all' if only `npm test -- --all` runs it; missing if both do.
 * @type {{ name: string, uses: string[], after?: string[], waits?: boolean, in?: 'quick' | 'all',
 *   run: () => Promise<import('./outcomes.mjs').Outcome> }[]}
 */
export const SUITES = [
  {
    name: 'CMake package',
    in: 'all',
    uses: [...LIBRARY, 'bindings/package.json'],
    after: ['native'],
    run: () => nodeTests(['tests/packaging/cmake.test.mjs']),
  },
  {
    name: 'core, thread sanitizer',
    in: 'all',
    uses: core('tsan'),
    after: ['tsan'],
    run: () => googleTest('tsan', [tests('tsan')], fewer),
  },
  {
    name: 'core, address sanitizer',
    in: 'all',
    uses: core('asan'),
    after: ['asan'],
    run: () => googleTest('asan', [tests('asan')], fewer),
  },
  {
    name: 'core, ARM64 emulated',
    in: 'all',
    uses: core('arm64'),
    after: ['arm64'],
    run: () => emulatedTests(),
  },
  {
    name: 'npm package',
    in: 'all',
    uses: [...PACKAGE, 'bindings/dist'],
    after: ['package'],
    run: () => vitest('bindings', 'vitest', { env: { MULTIHEAD_TEST_BUILDS: 'relaxed' } }),
  },
  {
    name: 'npm package, simd128, numbers',
    in: 'all',
    uses: [...PACKAGE, 'bindings/dist'],
    after: ['package'],
    run: () => vitest('bindings', 'vitest-simd128', { chosen: COMPUTED, env: { MULTIHEAD_TEST_BUILDS: 'simd128' } }),
  },
  {
    name: 'npm package, one build',
    in: 'quick',
    uses: WITHOUT_KERNELS,
    after: ['package'],
    run: () => vitest('bindings', 'vitest', { chosen: [...NUMBERS, PACKED].map((file) => `--exclude=${file}`), env: ONE_BUILD }),
  },
  {
    name: 'npm package, one build, numbers',
    in: 'quick',
    uses: [...PACKAGE, 'bindings/dist'],
    after: ['package'],
    run: () => vitest('bindings', 'vitest-numbers', { chosen: NUMBERS, env: ONE_BUILD }),
  },
  {
    name: 'programs',
    in: 'all',
    uses: [...LIBRARY, ...PACKAGE, '.github', 'web', '.oxfmtrc.json', '.oxlintrc.json', 'knip.json'],
    after: ['native', 'page', 'asan', 'tsan', 'emu128', 'arm64'], // one test checks all suites' files
    run: () => nodeTests(programTests()),
  },
  {
    name: 'CUDA kernels, emulated',
    in: 'all',
    uses: core('native', 'cuda/multihead_cuda_tests'),
    after: ['native'],
    run: () => cudaTests(),
  },
  {
    name: 'core, EMU128',
    in: 'all',
    uses: core('native', 'multihead_tests_emu128'),
    after: ['emu128'],
    run: () => googleTest('emu128', [tests('native').concat('_emu128'), `--gtest_filter=-${ANY_PROCESSOR}`], emulated),
  },
  {
    name: 'core, native',
    in: 'all',
    uses: core('native'),
    after: ['core'],
    run: () => googleTest('native', [tests('native')]),
  },
  {
    name: 'core, native, two SIMD targets',
    in: 'quick',
    uses: core('quick'),
    after: ['quick'],
    run: () => googleTest('native', [tests('quick')]),
  },
  ...FUZZ_TARGETS.map((target) => ({
    name: `fuzz ${target}`,
    in: 'all',
    uses: core('asan', `fuzz_${target}`),
    after: ['asan'],
    run: () => runTests(shortRun(target), null, fuzzCounts, { env: FUZZ_ENVIRONMENT }),
  })),
  { name: 'conformance, native', in: 'all', after: ['core'], ...nativeConformance('native') },
  { name: 'conformance, two SIMD targets', in: 'quick', after: ['quick'], ...nativeConformance('quick') },
  {
    name: 'conformance, npm',
    uses: PACKAGE,
    after: ['package'],
    run: () => runTests([process.execPath, 'bindings/conformance.mjs', CASES], null, conformanceCounts),
  },
  {
    name: 'page, modules',
    uses: ['web', 'bindings', 'package-lock.json'],
    after: ['page'],
    run: () => vitest('web', 'web'),
  },
  {
    name: 'page, Chromium',
    in: 'quick',
    uses: WITHOUT_KERNELS,
    ...inBrowser,
    run: () => browserTests('browser', '--quick', 'chromium: '),
  },
  {
    name: 'page, Chromium, numbers',
    in: 'quick',
    uses: PAGE,
    after: ['page'], // without `waits`: it runs while the other tests in Chromium do
    run: () => browserTests('browser-numbers', '--numbers', 'chromium: '),
  },
  { name: 'GPU kernels, Chromium, one width', in: 'quick', ...GPU, run: () => gpuTests('--quick') },
  { name: 'GPU kernels, Chromium', in: 'all', ...GPU, run: () => gpuTests() },
  { name: 'page, browsers', in: 'all', uses: PAGE, ...inBrowser, run: () => browserTests('browser') },
  // After the other browsers: WebKit paints without a graphics processor here, and while builds and four other browsers ran,
  // its training of four jobs took longer than two minutes. Beside two busy cores it takes 36 s.
  {
    name: 'page, WebKit',
    in: 'all',
    uses: PAGE,
    ...inBrowser,
    run: () => browserTests('webkit', '--webkit'),
  },
];
