// `npm test`: sets up, builds and runs every suite; its last line counts them all.
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT, buildAll, buildPreset, npmProgram } from './build.mjs';
import { SetupError, UsageError, run, say, step } from './console.mjs';
import { FUZZ_ENVIRONMENT, FUZZ_TARGETS, shortRun } from './fuzz.mjs';
import { runAsProgram } from './program.mjs';
import { setup } from './setup.mjs';

const at = (...path) => join(ROOT, 'build', ...path);
const results = (name) => at('test-results', `${name}.json`);
const relaxedFlag = parseInt(process.versions.node, 10) < 22 ? ['--experimental-wasm-relaxed-simd'] : [];

/** A suite's command may fail; what counts is what it wrote. Without a result the whole suite is one failure. */
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
    env: { ...process.env, ...env },
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

/** Why GoogleTest skipped a test: newer ones write it into the result, older ones only print it. */
function reasonsOfSkips(tests, output) {
  const printed = new Map(); // by the line where the test begins in which it was said
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

const vitestCounts = ({ numPassedTests, numFailedTests, numFailedTestSuites, testResults }) => ({
  passed: numPassedTests,
  // A file that could not even be loaded has no failed test.
  failed: numFailedTests || numFailedTestSuites,
  skipped: testResults
    .flatMap(({ assertionResults }) => assertionResults)
    .filter(({ status }) => status !== 'passed' && status !== 'failed')
    .map(({ fullName }) => ({ name: fullName, reason: 'marked so in the suite' })),
});

/** Adds up every "N passed, N failed" of one build; the last line is their total. */
function conformanceCounts(output) {
  const [, passed, failed] = [...output.matchAll(/(\d+) passed, (\d+) failed/g)].at(-1) ?? [0, 0, 1];
  return { passed: Number(passed), failed: Number(failed) };
}

/** What node:test sums up behind its results. */
function nodeTestCounts(output) {
  const count = (what) => Number(new RegExp(`^# ${what} (\\d+)$`, 'm').exec(output)?.[1] ?? 0);
  const skipped = [...output.matchAll(/^ *ok \d+ - (.*) # SKIP (.*)$/gm)].map(([, name, reason]) => ({ name, reason }));
  return { passed: count('pass'), failed: count('fail'), skipped };
}

// Under the sanitizers every memory access is checked: fewer random calls find as much.
// Memory that cannot be had is a null pointer, as without them: tests ask for it on purpose.
const nullWhenExhausted = 'allocator_may_return_null=1';
const fewer = {
  MULTIHEAD_RANDOM_CASES: '40',
  ASAN_OPTIONS: nullWhenExhausted,
  TSAN_OPTIONS: nullWhenExhausted,
};
const tests = (preset) => at(preset, 'tests', 'multihead_tests');

const WIDE_SUITES = ['npm package', 'page, browsers'];
const SUITES = [
  ['core, address sanitizer', () => googleTest('asan', [tests('asan')], fewer)],
  ['core, native', () => googleTest('native', [tests('native')])],
  ...FUZZ_TARGETS.map((name) => [
    `fuzz ${name}`,
    () => outcomeOf(shortRun(name), null, (output) => ({ passed: Number(/^\d+ runs$/m.test(output)), failed: 0 }), { env: FUZZ_ENVIRONMENT }),
  ]),
  ['core, thread sanitizer', () => googleTest('tsan', [tests('tsan')], fewer)],
  ['core, wasm simd128', () => googleTest('wasm-simd128', [process.execPath, `${tests('wasm')}.cjs`])],
  [
    'core, wasm relaxed',
    () => googleTest('wasm-relaxed', [process.execPath, ...relaxedFlag, `${tests('wasm')}_relaxed.cjs`]),
  ],
  ['CMake package', () => nodeTests(['tests/packaging/cmake.test.mjs'])],
  [
    'conformance, native',
    () => outcomeOf([at('native', 'native', 'multihead-conformance'), 'tests/conformance'], null, conformanceCounts),
  ],
  [
    'conformance, npm',
    () => outcomeOf([process.execPath, 'bindings/conformance.mjs', 'tests/conformance'], null, conformanceCounts),
  ],
  ['programs', () => nodeTests(programTests())],
  ['npm package', () => workspaceTests('multihead', 'vitest')],
  ['page, modules', () => workspaceTests('@multihead/web', 'web')],
  [
    'page, browsers',
    () => outcomeOf([process.execPath, 'tests/browser/run.mjs'], results('browser'), (counts) => counts),
  ],
];

const nodeTests = (files) =>
  outcomeOf([process.execPath, '--test', '--test-reporter=tap', ...files], null, nodeTestCounts);

const programTests = () =>
  readdirSync(join(ROOT, 'tests', 'native'))
    .filter((name) => name.endsWith('.test.mjs'))
    .map((name) => join('tests', 'native', name));

function workspaceTests(workspace, name) {
  return outcomeOf([...npmProgram(), 'test', '-w', workspace], results(name), vitestCounts);
}

runAsProgram(import.meta.url, async (filter = '') => {
  const begun = performance.now();
  const manifest = await setup({ purpose: 'test' });
  await buildAll();
  await buildPreset('asan');
  await buildPreset('tsan');
  mkdirSync(at('test-results'), { recursive: true });
  for (const browser of ['chromium', 'firefox']) {
    if (manifest[browser]) process.env[`${browser.toUpperCase()}_PATH`] ??= manifest[browser];
  }

  const total = { passed: 0, failed: 0, skipped: 0 };
  const chosen = SUITES.filter(([name]) => name.includes(filter));
  if (!chosen.length) throw new UsageError(`No suite has "${filter}" in its name`);
  const reasons = [];
  const runSuite = async ([name, suite]) => {
    const { passed, failed, skipped, output } = await step(name, async (tell) => {
      const outcome = await suite();
      tell(`${outcome.passed} passed, ${outcome.failed} failed`);
      return outcome;
    });
    if (failed) say(`\n${name}:\n${output.trimEnd()}\n`);
    total.passed += passed;
    total.failed += failed;
    total.skipped += skipped.length;
    reasons.push(...skipped.map((test) => `skipped: ${name}: ${test.name}: ${test.reason}`));
  };
  // Most suites keep one core busy; two at a time, the longest first. The others use every core.
  const waiting = chosen.filter(([name]) => !WIDE_SUITES.includes(name));
  const lane = async () => {
    while (waiting.length) await runSuite(waiting.shift());
  };
  await Promise.all([lane(), lane()]);
  for (const suite of chosen.filter(([name]) => WIDE_SUITES.includes(name))) await runSuite(suite);
  for (const reason of reasons) say(reason);
  say(`\nAll suites, ${((performance.now() - begun) / 1000).toFixed(0)} s`);
  say(`${total.passed} passed, ${total.failed} failed${total.skipped ? `, ${total.skipped} skipped` : ''}`);
  process.exitCode = total.failed ? 1 : 0;
});
