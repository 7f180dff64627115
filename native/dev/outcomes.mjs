// Runs the programs of the suites, and reads how many of their tests passed, failed and were skipped.
import { existsSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT } from './build.mjs';
import { SetupError, run } from './console.mjs';

/**
 * @typedef {object} Outcome
 * @property {number} passed
 * @property {number} failed
 * @property {{ name: string, message: string }[]} failures the failed tests, as far as the program names them
 * @property {{ name: string, reason: string }[]} skipped
 * @property {string} output
 */

const NO_REASON = 'no reason given';

/** The file into which a suite writes its results. */
export const resultsFile = (name) => join(ROOT, 'build', 'test-results', `${name}.json`);

/**
 * Runs a suite's command and reads the result that it wrote, even if the command fails. Without a result, the whole
 * suite is one failure.
 */
export async function runTests(command, file, read, options = {}) {
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
  if (file && !existsSync(file)) return { passed: 0, failed: 1, failures: [], skipped: [], output };
  const written = file ? JSON.parse(readFileSync(file, 'utf8')) : output;
  const outcome = { failures: [], skipped: [], output, ...read(written, output) };
  // A crash after the last result is a failure that no test reports.
  if (!ended && outcome.failed === 0) outcome.failed = 1;
  return outcome;
}

/** Runs a program of GoogleTest. */
export function googleTest(name, command, env = {}) {
  const file = resultsFile(name);
  return runTests([...command, '--gtest_brief=1', `--gtest_output=json:${file}`], file, googleTestCounts, {
    // Two suites share the processor, and OpenMP threads that spin while waiting would take a fifth of its time.
    env: { OMP_WAIT_POLICY: 'passive', ...process.env, ...env },
  });
}

/** Reads the results that GoogleTest writes as JSON, and the reasons that older versions only print. */
export function googleTestCounts({ testsuites }, output) {
  const tests = testsuites.flatMap(({ name, testsuite }) => testsuite.map((test) => ({ ...test, name: `${name}.${test.name}` })));
  const failed = tests.filter(({ failures }) => failures?.length);
  const skipped = tests.filter(({ failures, result }) => !failures?.length && result !== 'COMPLETED');
  const reasonOf = reasonsOfSkips(tests, output);
  return {
    passed: tests.length - failed.length - skipped.length,
    failed: failed.length,
    failures: failed.map(({ name, failures }) => ({ name, message: failures[0].failure.replace('\n', ': ') })),
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
    return written || printed.get(`${file}:${line}`) || NO_REASON;
  };
}

export const fuzzCounts = (output) => ({ passed: Number(/^\d+ runs$/m.test(output)), failed: 0 });

export function vitestCounts({ numPassedTests, numFailedTests, numFailedTestSuites, testResults }) {
  const tests = testResults.flatMap(({ assertionResults }) => assertionResults);
  const failed = tests.filter(({ status }) => status === 'failed');
  const skipped = tests.filter(({ status }) => status !== 'passed' && status !== 'failed');
  return {
    passed: numPassedTests,
    // A file that could not be loaded has no failed test, so count the file.
    failed: numFailedTests || numFailedTestSuites,
    failures: failed.map(({ fullName, failureMessages }) => ({ name: fullName, message: failureMessages.join('\n') })),
    skipped: skipped.map(({ fullName }) => ({ name: fullName, reason: 'marked so in the suite' })),
  };
}

/** Reads the total of a conformance run: its last line "N passed, N failed". */
export function conformanceCounts(output) {
  const [, passed, failed] = [...output.matchAll(/(\d+) passed, (\d+) failed/g)].at(-1) ?? [0, 0, 1];
  return { passed: Number(passed), failed: Number(failed) };
}

/** Reads the results that node:test prints in the format TAP. A test that is marked as to do counts as skipped. */
export function nodeTestCounts(output) {
  const count = (what) => Number(new RegExp(`^# ${what} (\\d+)$`, 'm').exec(output)?.[1] ?? 0);
  const skips = output.matchAll(/^ *(?:not )?ok \d+ - (.*?) # (?:SKIP|TODO)\b ?(.*)$/gm);
  const skipped = [...skips].map(([, name, reason]) => ({ name, reason: reason || NO_REASON }));
  const faults = output.matchAll(/^ *not ok \d+ - (?!.* # (?:SKIP|TODO)\b)(.*)\n(?: +.*\n)*? +error: (?:\|-\n +)?(.*)$/gm);
  const failures = [...faults].map(([, name, message]) => ({ name, message }));
  return { passed: count('pass'), failed: count('fail'), failures, skipped };
}

/** Runs files of node:test. */
export const nodeTests = (files) => runTests([process.execPath, '--test', '--test-reporter=tap', ...files], null, nodeTestCounts);

/** The outcome of a suite that this machine cannot build. */
export const notBuilt = (name, reason) => ({ passed: 0, failed: 0, failures: [], skipped: [{ name, reason }], output: '' });
