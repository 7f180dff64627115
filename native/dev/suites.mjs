// The suites of `npm test`: how to run each, and which files decide its outcome.
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { emulatesArm64, onArm64 } from './arm64.mjs';
import { ROOT, npmProgram } from './build.mjs';
import { FUZZ_ENVIRONMENT, FUZZ_TARGETS, shortRun } from './fuzz.mjs';
import { conformanceCounts, fuzzCounts, googleTest, nodeTests, notBuilt, outcomeOf, resultsFile, vitestCounts } from './outcomes.mjs';

const at = (...path) => join(ROOT, 'build', ...path);
const relaxedFlag = parseInt(process.versions.node, 10) < 22 ? ['--experimental-wasm-relaxed-simd'] : [];

/** Tests the CUDA kernels without a GPU, in the emulator of tests/cuda. */
function cudaTests() {
  const program = at('native', 'tests', 'cuda', 'multihead_cuda_tests');
  if (existsSync(program)) return googleTest('cuda', [program]);
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
  MULTIHEAD_RANDOM_CASES: '40',
  ASAN_OPTIONS: nullWhenExhausted,
  TSAN_OPTIONS: nullWhenExhausted,
};
const tests = (preset) => at(preset, 'tests', 'multihead_tests');

const programTests = () =>
  readdirSync(join(ROOT, 'tests', 'native'))
    .filter((name) => name.endsWith('.test.mjs'))
    .map((name) => join('tests', 'native', name));

function workspaceTests(workspace, name) {
  return outcomeOf([...npmProgram(), 'test', '-w', workspace], resultsFile(name), vitestCounts);
}

/** Runs the page's tests in every browser, or only in the given ones. */
const browserTests = (...only) =>
  outcomeOf([process.execPath, 'tests/browser/run.mjs', ...only.map((name) => `${name}: `)], resultsFile('browser'), (counts) => counts);

const CASES = 'tests/conformance';
const LIBRARY = ['CMakeLists.txt', 'CMakePresets.json', 'src', 'native', 'tests', 'README.md'];
const PACKAGE = ['bindings', 'native/dev/packages', 'package.json', 'package-lock.json', 'README.md', 'src/engine/error/messages.inc', CASES];
const core = (preset, program = 'multihead_tests') => [`build/${preset}/tests/${program}`, CASES];
const wasmCore = (program) => [`build/wasm/tests/${program}.cjs`, `build/wasm/tests/${program}.wasm`, CASES];

const PAGE = {
  uses: ['build/web', 'web', 'bindings/dist', 'tests/browser', 'native/dev', 'package-lock.json'],
  after: ['page'],
  wide: true,
};

// Run one random call of each kind: kernels on an emulated processor, or without SIMD, take 20 times as long, and one
// call finds any difference from x86.
const emulated = { MULTIHEAD_RANDOM_CASES: '1' };
// Tests left out on emulated processors. The first: qemu ends when a process with threads forks. The others are slow
// and do not depend on the processor.
const NOT_EMULATED = [
  '*Fork*:StdThreads.ACallGoesOnWithTheThreadsThatCouldBeCreated',
  'Experiments.*:ExhaustedMemory.*:Team.*:Methods/*:Conformance.Any*:Attention.ScratchIsIndependentOfTheSequenceLength',
  '*.MeansOfEqualValuesStayWithinTheirBound/*',
].join(':');

/**
 * The suites, the longest first. `uses`: the files and folders, relative to the checkout, that decide the outcome
 * besides the machine. `after`: the builds of test.mjs that it needs. `wide`: it keeps every core busy; other suites
 * use one core.
 * `in`: 'quick' if only `npm test` runs it, 'all' if only `npm test -- --all` runs it; missing if both do.
 * @type {{ name: string, uses: string[], after?: string[], wide?: boolean, in?: 'quick' | 'all',
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
    name: 'core, EMU128',
    in: 'all',
    uses: core('native', 'multihead_tests_emu128'),
    after: ['emu128'],
    run: () => googleTest('emu128', [tests('native').concat('_emu128')], emulated),
  },
  { name: 'core, native', uses: core('native'), after: ['core'], run: () => googleTest('native', [tests('native')]) },
  {
    name: 'CUDA kernels, emulated',
    in: 'all',
    uses: core('native', 'cuda/multihead_cuda_tests'),
    after: ['native'],
    run: () => cudaTests(),
  },
  ...FUZZ_TARGETS.map((target) => ({
    name: `fuzz ${target}`,
    in: 'all',
    uses: core('asan', `fuzz_${target}`),
    after: ['asan'],
    run: () => outcomeOf(shortRun(target), null, fuzzCounts, { env: FUZZ_ENVIRONMENT }),
  })),
  {
    name: 'core, wasm simd128',
    uses: wasmCore('multihead_tests'),
    after: ['wasm'],
    run: () => googleTest('wasm-simd128', [process.execPath, `${tests('wasm')}.cjs`]),
  },
  {
    name: 'core, wasm relaxed',
    in: 'all',
    uses: wasmCore('multihead_tests_relaxed'),
    after: ['relaxed'],
    run: () => googleTest('wasm-relaxed', [process.execPath, ...relaxedFlag, `${tests('wasm')}_relaxed.cjs`]),
  },
  {
    name: 'conformance, native',
    uses: ['build/native/native/multihead-conformance', CASES],
    after: ['core'],
    run: () => outcomeOf([at('native', 'native', 'multihead-conformance'), CASES], null, conformanceCounts),
  },
  {
    name: 'conformance, npm',
    uses: PACKAGE,
    after: ['package'],
    run: () => outcomeOf([process.execPath, 'bindings/conformance.mjs', CASES], null, conformanceCounts),
  },
  {
    name: 'programs',
    in: 'all',
    uses: [...LIBRARY, ...PACKAGE, '.github', 'web/test/programs'],
    after: ['native', 'page', 'asan', 'tsan', 'relaxed', 'emu128', 'arm64'], // one test checks all suites' files
    run: () => nodeTests(programTests()),
  },
  {
    name: 'npm package',
    uses: PACKAGE,
    after: ['package'],
    wide: true,
    run: () => workspaceTests('multihead', 'vitest'),
  },
  {
    name: 'page, modules',
    uses: ['web', 'bindings', 'package-lock.json'],
    after: ['page'],
    run: () => workspaceTests('@multihead/web', 'web'),
  },
  { name: 'page, Chromium', in: 'quick', ...PAGE, run: () => browserTests('chromium') },
  { name: 'page, browsers', in: 'all', ...PAGE, run: () => browserTests() },
];
