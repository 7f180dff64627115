// `npm test [-- [--all] [--again] [FILTER]]`: sets up, builds and runs the suites that find nearly all faults. --all
// runs every suite; FILTER runs only suites, among all, whose name contains it. The last line counts the tests.
//
// A suite that passed completely is not run again until something that it tests changes; its line says so. --again, a
// filter or the variable CI makes every suite run.
import { existsSync, mkdirSync } from 'node:fs';
import { availableParallelism, cpus } from 'node:os';
import { join } from 'node:path';
import { ROOT, buildPackage, buildPage, buildPreset, buildWasm, fingerprint } from './build.mjs';
import { UsageError, coreSeconds, say, step, stopCommands } from './console.mjs';
import { Passed } from './passed.mjs';
import { runAsProgram } from './program.mjs';
import { setup } from './setup.mjs';
import { reportSkips } from './skips.mjs';
import { SUITES } from './suites.mjs';
import { runTasks } from './tasks.mjs';

const RESULTS = join(ROOT, 'build', 'test-results');
/** The toolchain file that the set-up writes if there is a cross compiler. */
const ARM64 = join(ROOT, 'build', 'toolchain', 'arm64.cmake');

/**
 * Each build gets half of the cores, because two builds or suites run at a time. WebAssembly gets all of them: most
 * suites wait for it.
 */
const jobs = Math.max(1, Math.floor(availableParallelism() / 2));
const cores = availableParallelism();
const BUILDS = [
  { name: 'wasm', run: () => buildWasm({ jobs: cores }) },
  { name: 'quick', run: () => buildPreset('quick', { jobs: cores }) },
  { name: 'core', run: () => buildPreset('native', { jobs, target: ['multihead_tests', 'multihead-conformance'] }) },
  { name: 'native', after: ['core'], run: () => buildPreset('native', { jobs }) },
  { name: 'package', after: ['wasm'], run: buildPackage },
  { name: 'page', after: ['package'], run: buildPage },
  { name: 'asan', run: () => buildPreset('asan', { jobs }) },
  { name: 'tsan', run: () => buildPreset('tsan', { jobs }) },
  { name: 'emu128', after: ['native'], run: () => buildPreset('native', { jobs, target: 'multihead_tests_emu128' }) },
  { name: 'arm64', run: () => existsSync(ARM64) && buildPreset('arm64', { jobs, target: 'multihead_tests' }) },
];

/** Returns the builds that these tasks need, in order. */
export function buildsFor(tasks) {
  const needed = new Set(tasks.flatMap(({ after = [] }) => after));
  for (const { name, after = [] } of BUILDS.toReversed()) if (needed.has(name)) for (const first of after) needed.add(first);
  return BUILDS.filter(({ name }) => needed.has(name));
}

/** Returns everything besides a suite's files that decides its outcome. */
function machine(manifest) {
  const variables = Object.entries(process.env).filter(([name]) => name.startsWith('MULTIHEAD_'));
  return JSON.stringify([process.version, cpus()[0]?.model, cpus().length, manifest, variables.sort()]);
}

function readArguments(given) {
  const [all, again] = ['--all', '--again'].map((flag) => given.includes(flag));
  const rest = given.filter((argument) => !['--all', '--again'].includes(argument));
  if (rest.length > 1 || rest[0]?.startsWith('-')) {
    throw new UsageError(`Expected [--all] [--again] [FILTER], got ${given.join(' ')}`);
  }
  const [filter] = rest;
  const left = filter === undefined && !all ? 'all' : 'quick'; // the `in` of suites that are left out
  const chosen = SUITES.filter((suite) => suite.in !== left && suite.name.includes(filter ?? ''));
  if (!chosen.length) throw new UsageError(`No suite has "${filter}" in its name: ${SUITES.map(({ name }) => name).join('; ')}`);
  return { chosen, purpose: left === 'all' ? 'quick' : 'all', everything: Boolean(process.env.CI) || filter !== undefined || again };
}

/** Sets up what suites need; returns the manifest. */
export async function prepare(purpose) {
  const manifest = await setup({ purpose });
  mkdirSync(RESULTS, { recursive: true });
  const paths = { HEADLESS_SHELL_PATH: manifest.headlessShell, CHROMIUM_PATH: manifest.chromium, FIREFOX_PATH: manifest.firefox };
  for (const [variable, path] of Object.entries(paths)) if (path) process.env[variable] ??= path;
  return manifest;
}

const firstLine = (text) => text.trimStart().split('\n', 1)[0];

/**
 * Runs suites after the builds that they need, and prints their failures and skipped tests.
 * @param {typeof SUITES} chosen
 * @param {{ passedBefore: Passed, everything: boolean, inCi?: boolean }} options `everything`: also suites that passed
 *   before
 */
export async function runSuites(chosen, { passedBefore, everything, inCi = Boolean(process.env.CI) }) {
  const total = { passed: 0, failed: 0, skipped: 0 };
  const [again, failures, skipped] = [[], [], []];
  let unchanged = 0;
  const runSuite = async ({ name, uses, run }) => {
    const outcome = await step(name, async (tell) => {
      const print = fingerprint(['native/dev', ...uses]);
      const known = everything ? undefined : passedBefore.find(name, print);
      const result = known ?? (await run());
      if (known) unchanged += 1;
      else passedBefore.store(name, print, result);
      tell(`${result.passed} passed${known ? ' before, unchanged' : `, ${result.failed} failed`}`);
      return result;
    });
    if (outcome.failed) {
      say(`\n${name}:\n${outcome.output.trimEnd()}\n`);
      const named = outcome.failures.map((test) => `${name}: ${test.name}: ${firstLine(test.message)}`);
      failures.push(...(named.length ? named : [`${name}: its output above says what failed`]));
    }
    total.passed += outcome.passed;
    total.failed += outcome.failed;
    total.skipped += outcome.skipped.length;
    again.push(...(outcome.again ?? []));
    skipped.push(...outcome.skipped.map((test) => ({ ...test, name: `${name}: ${test.name}` })));
  };
  const suites = chosen.map((suite) => ({ ...suite, run: () => runSuite(suite) }));
  await runTasks([...buildsFor(suites), ...suites]).catch((error) => {
    stopCommands();
    throw error;
  });
  for (const first of again) say(`passed at the second attempt: ${firstLine(first)}`);
  for (const failure of failures) say(`failed: ${failure}`);
  const report = reportSkips(skipped, inCi);
  report.lines.forEach(say);
  total.failed += report.failed;
  return { total, unchanged };
}

runAsProgram(import.meta.url, async (...given) => {
  const begun = performance.now();
  const { chosen, purpose, everything } = readArguments(given);
  const manifest = await prepare(purpose);
  const passedBefore = new Passed(join(RESULTS, 'passed.json'), machine(manifest));
  const { total, unchanged } = await runSuites(chosen, { passedBefore, everything });
  const used = coreSeconds();
  say(`\nAll suites, ${((performance.now() - begun) / 1000).toFixed(0)} s${used && `, ${used}`}`);
  if (unchanged) {
    say(`${unchanged} of ${chosen.length} suites passed in an earlier run, and nothing that they test has changed.`);
    say('--again runs them all, with new random cases.');
  }
  say(`${total.passed} passed, ${total.failed} failed${total.skipped ? `, ${total.skipped} skipped` : ''}`);
  process.exitCode = total.failed ? 1 : 0;
});
