// The suites of `npm test`: how to run each, how to count its results, and which files decide its outcome.
import { existsSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { onArm64 } from './arm64.mjs';
import { ROOT, npmProgram } from './build.mjs';
import { SetupError, run } from './console.mjs';
import { FUZZ_ENVIRONMENT, FUZZ_TARGETS, shortRun } from './fuzz.mjs';

const at = (...path) => join(ROOT, 'build', ...path);
const results = (name) => at('test-results', `${name}.json`);
const relaxedFlag = parseInt(process.versions.node, 10) < 22 ? ['--experimental-wasm-relaxed-simd'] : [];

/**
 * @typedef {object} Outcome
 * @property {number} passed
 * @property {number} failed
 * @property {{ name: string, reason: string }[]} skipped
 * @property {string} output
 */

/** Tests the CUDA kernels without a GPU, in the emulator of tests/cuda. */
function cudaTests() {
  const program = at('native', 'tests', 'cuda', 'multihead_cuda_tests');
  if (existsSync(program)) return googleTest('cuda', [program]);
  const reason = 'no Boost.Context was found';
  return { passed: 0, failed: 0, skipped: [{ name: 'CUDA kernels', reason }], output: '' };
}

/** Runs the tests for ARM64 on an emulated processor, if they could be built. */
function emulatedTests() {
  const program = tests('arm64');
  if (existsSync(program)) return googleTest('arm64', [...onArm64(program), `--gtest_filter=-${NOT_EMULATED}`], emulated);
  const reason = 'no cross compiler and emulator for ARM64 were found';
  return { passed: 0, failed: 0, skipped: [{ name: 'ARM64', reason }], output: '' };
}

/**
 * Runs a suite's command and reads the result that it wrote, even if the command fails. Without a result, the whole
 * suite is one failure.
 */
async function outcomeOf(command, file, read, options = {}) {
  if (file) rmSync(file, { force: true });
  let output = '';
  let ended = true;
  try {
    output = await run(command, { cwd: ROOT, ...options });
  } catch (error) {
    if (!(error instanceof SetupError)) throw error;
    output = `${error.message.split('\n', 1)[0]}\n${error.output ?? error.message}`;
    ended = false;
  }
  if (file && !existsSync(file)) return { passed: 0, failed: 1, skipped: [], output };
  const written = file ? JSON.parse(readFileSync(file, 'utf8')) : output;
  const outcome = { skipped: [], output, ...read(written, output) };
  // A crash after the last result is a failure that no test reports.
  if (!ended && outcome.failed === 0) outcome.failed = 1;
  return outcome;
}

function googleTest(name, command, env = {}) {
  const file = results(name);
  return outcomeOf([...command, '--gtest_brief=1', `--gtest_output=json:${file}`], file, googleTestCounts, {
    // Two suites share the processor, and OpenMP threads that spin while waiting would take a fifth of its time.
    env: { OMP_WAIT_POLICY: 'passive', ...process.env, ...env },
  });
}

function googleTestCounts({ testsuites }, output) {
  const tests = testsuites.flatMap(({ name, testsuite }) =>
    testsuite.map((test) => ({ ...test, name: `${name}.${test.name}` })),
  );
  const failed = tests.filter(({ failures }) => failures?.length);
  const skipped = tests.filter(({ failures, result }) => !failures?.length && result !== 'COMPLETED');
  const reasonOf = reasonsOfSkips(tests, output);
  return {
    passed: tests.length - failed.length - skipped.length,
    failed: failed.length,
    skipped: skipped.map((test) => ({ name: test.name, reason: reasonOf(test) })),
  };
}

/**
 * Returns why GoogleTest skipped each test: newer versions write the reason into the result, older ones only print it.
 */
function reasonsOfSkips(tests, output) {
  const printed = new Map(); // by file and first line of the test
  for (const [, file, line, reason] of output.matchAll(/^(.+):(\d+): Skipped\n(.*)$/gm)) {
    const begun = tests.filter((test) => test.file === file && test.line <= Number(line)).map((test) => test.line);
    printed.set(`${file}:${Math.max(...begun)}`, reason);
  }
  return ({ status, skipped, file, line }) => {
    if (status === 'NOTRUN') return 'disabled';
    const written = skipped?.[0]?.message.replace(/^.*:\d+\n/, '').split('\n', 1)[0];
    return written || printed.get(`${file}:${line}`) || 'no reason given';
  };
}

const fuzzCounts = (output) => ({ passed: Number(/^\d+ runs$/m.test(output)), failed: 0 });

const vitestCounts = ({ numPassedTests, numFailedTests, numFailedTestSuites, testResults }) => ({
  passed: numPassedTests,
  // A file that could not be loaded has no failed test, so count the file.
  failed: numFailedTests || numFailedTestSuites,
  skipped: testResults
    .flatMap(({ assertionResults }) => assertionResults)
    .filter(({ status }) => status !== 'passed' && status !== 'failed')
    .map(({ fullName }) => ({ name: fullName, reason: 'marked so in the suite' })),
});

/** Reads the total of a conformance run: its last line "N passed, N failed". */
function conformanceCounts(output) {
  const [, passed, failed] = [...output.matchAll(/(\d+) passed, (\d+) failed/g)].at(-1) ?? [0, 0, 1];
  return { passed: Number(passed), failed: Number(failed) };
}

/** Reads the summary that node:test prints after its results. */
function nodeTestCounts(output) {
  const count = (what) => Number(new RegExp(`^# ${what} (\\d+)$`, 'm').exec(output)?.[1] ?? 0);
  const skipped = [...output.matchAll(/^ *ok \d+ - (.*) # SKIP (.*)$/gm)].map(([, name, reason]) => ({ name, reason }));
  return { passed: count('pass'), failed: count('fail'), skipped };
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

const nodeTests = (files) =>
  outcomeOf([process.execPath, '--test', '--test-reporter=tap', ...files], null, nodeTestCounts);

const programTests = () =>
  readdirSync(join(ROOT, 'tests', 'native'))
    .filter((name) => name.endsWith('.test.mjs'))
    .map((name) => join('tests', 'native', name));

function workspaceTests(workspace, name) {
  return outcomeOf([...npmProgram(), 'test', '-w', workspace], results(name), vitestCounts);
}

/** Runs the page's tests in every browser, or only in the given ones. */
const browserTests = (...only) =>
  outcomeOf([process.execPath, 'tests/browser/run.mjs', ...only.map((name) => `${name}: `)], results('browser'), (counts) => counts);

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
 *   run: () => Promise<Outcome> }[]}
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
