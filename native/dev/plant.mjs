// `npm run plant [-- options]`: plants faults of faults.mjs into the sources, one at a time, builds, runs the suites of `npm test`
// whose files a fault changes, until one fails, and tells which test found it. HELP lists the options.
//
// A fault goes into the checkout, whose tracked files must be unchanged before, and is taken back in any case, also after Ctrl-C.
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { parseArgs } from 'node:util';
import { ROOT, buildPreset, fingerprint } from './build.mjs';
import { SetupError, UsageError, say, step, stopCommands } from './console.mjs';
import { CUDA_FAULTS, FAULTS } from './faults.mjs';
import { googleTest } from './outcomes.mjs';
import { runAsProgram } from './program.mjs';
import { SUITES } from './suites.mjs';
import { buildsFor, prepare } from './test.mjs';

const HELP = `npm run plant -- [--only 3,17] [--cuda] [--list] [--seed N]

  --only LIST   only faults of these numbers
  --cuda        faults of the CUDA kernels, which the emulator's tests find
  --list        prints the faults
  --seed N      prints places for a new list: 8 lines of code of each part, drawn with this seed

Exit code: 0; 1 if a fault was not found; 2 for wrong arguments.`;

/** Seconds after which a suite counts as failed: a fault may make it hang. */
const MOST_SECONDS = 1500;
const RESULTS = join(ROOT, 'build', 'planted.json');

/** The folders of each part. Places are drawn from all of a part's files. */
export const PARTS = {
  kernels: ['src/cpu'],
  engine: ['src/engine', 'src/rules'],
  models: ['src/models', 'src/nn'],
  package: ['bindings/src'],
  page: ['web/src'],
};

const git = (...args) => execFileSync('git', args, { cwd: ROOT, encoding: 'utf8' });

/** Lines of code, from all of a part alike; comments and imports are none. */
export function drawPlaces(seed, each = 8) {
  let state = seed >>> 0;
  const random = (below) => Math.floor(((state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32) * below);
  const isCode = (line) => /[=<>+\-*%!&|?(]/.test(line) && !/^\s*(\/\/|\*|\/\*|#|import |export \* |export \{|using |namespace |HWY_)/.test(line);
  return Object.entries(PARTS).flatMap(([part, folders]) => {
    const files = git('ls-files', ...folders)
      .trim()
      .split('\n')
      .filter((file) => /(?<!\.d)\.(cc|h|ts)$/.test(file))
      .sort();
    const placesOf = (file) =>
      readFileSync(join(ROOT, file), 'utf8')
        .split('\n')
        .flatMap((text, at) => (isCode(text) ? [{ part, file, line: at + 1, text }] : []));
    const places = files.flatMap(placesOf);
    return Array.from({ length: each }, () => places[random(places.length)]);
  });
}

/** Returns the text of a file with a fault; throws if the fault's text is not there once. */
export function withFault(text, { fault, from, to }) {
  const parts = text.split(from);
  if (parts.length !== 2) throw new SetupError(`${fault}: its text occurs ${parts.length - 1} times`, 'Mend its row in native/dev/faults.mjs.');
  return parts.join(to);
}

/** Runs `work` while a fault is in its file. */
export async function planted(fault, work, root = ROOT) {
  const path = join(root, fault.file);
  const before = readFileSync(path, 'utf8');
  const restore = () => writeFileSync(path, before);
  const end = () => process.exit(130); // `restore` runs at the exit
  process.on('exit', restore);
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, end);
  try {
    writeFileSync(path, withFault(before, fault));
    return await work();
  } finally {
    restore();
    process.off('exit', restore);
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.off(signal, end);
  }
}

const CUDA_TESTS = 'build/native/tests/cuda/multihead_cuda_tests';
const cudaSuite = ({ tests }) => ({
  name: 'CUDA kernels, emulated',
  uses: [CUDA_TESTS],
  builds: [{ name: 'cuda', run: () => buildPreset('native', { target: 'multihead_cuda_tests' }) }],
  run: () => googleTest('cuda', [join(ROOT, CUDA_TESTS), `--gtest_filter=${tests}`]),
});

/** Suites of `npm test`, the cheapest first. */
const CHEAPEST = [
  'conformance, two',
  'core, native',
  'conformance, npm',
  'page, modules',
  'npm package, one build, numbers',
  'npm package, one build',
  'page, Chromium, numbers',
  'page, Chromium',
];
const rankOf = ({ name }) => CHEAPEST.findIndex((begin) => name.startsWith(begin));
/** Suites of the fault's own part first: others find it seldom. */
const isOwn = (part, { name }) => (part === 'page' ? /^page/ : part === 'package' ? /npm/ : /^c/).test(name);

/** The suites that may find a fault, in the order in which they run. */
export function suitesFor(fault) {
  if (fault.tests) return [cudaSuite(fault)];
  const suites = SUITES.filter((suite) => suite.in !== 'all').map((suite) => ({ ...suite, builds: buildsFor([suite]) }));
  return suites.sort((a, b) => isOwn(fault.part, b) - isOwn(fault.part, a) || rankOf(a) - rankOf(b));
}

/** Runs the builds of a suite, each once for all that share `built`. */
async function build(suite, built) {
  for (const { name, run } of suite.builds) {
    if (built.has(name)) continue;
    await run();
    built.add(name);
  }
}

/** Returns the suite and the test that find the fault in the sources, and `ran`: the suites that it changes and that ran. */
async function find(fault, clean) {
  const built = new Set();
  const ran = [];
  for (const suite of suitesFor(fault)) {
    try {
      await build(suite, built);
    } catch (error) {
      if (!(error instanceof SetupError)) throw error;
      const said = /^.*error.*$/im.exec(error.message)?.[0] ?? error.message;
      return { ran, suite: 'build', test: said.trim().slice(0, 240) };
    }
    if (fingerprint(suite.uses) === clean.get(suite.name)) continue;
    ran.push(suite.name);
    let late = false;
    const timer = setTimeout(() => ((late = true), stopCommands()), MOST_SECONDS * 1000);
    const { failed, failures, output } = await step(suite.name, () => suite.run()).finally(() => clearTimeout(timer));
    if (!failed) continue;
    const [first] = failures;
    const test = first ? `${first.name}: ${first.message.trim().split('\n', 1)[0]}` : output.trim().split('\n').at(-1);
    return { ran, suite: suite.name, test: late ? `no end after ${MOST_SECONDS} s` : test.slice(0, 240) };
  }
  return { ran, suite: null, test: null };
}

/** Adds the results to the file, which keeps the results of other faults from earlier runs. */
function store(results) {
  let before = [];
  try {
    before = JSON.parse(readFileSync(RESULTS, 'utf8'));
  } catch {
    // There are none.
  }
  const isNew = ({ part, number }) => results.some((result) => result.part === part && result.number === number);
  mkdirSync(dirname(RESULTS), { recursive: true });
  writeFileSync(RESULTS, `${JSON.stringify([...before.filter((result) => !isNew(result)), ...results], null, 1)}\n`);
}

const row = ({ number, part, fault }) => `${String(number).padStart(2)}  ${part.padEnd(8)} ${fault}`;

function readArguments(args) {
  let values;
  try {
    const flag = { type: 'boolean', default: false };
    ({ values } = parseArgs({ args, options: { only: { type: 'string' }, cuda: flag, list: flag, seed: { type: 'string' }, help: flag } }));
  } catch (error) {
    throw new UsageError(error.message.split('. ', 1)[0], HELP);
  }
  const faults = values.cuda ? CUDA_FAULTS : FAULTS;
  const numbers = values.only?.split(',').map(Number) ?? faults.map(({ number }) => number);
  const wrong = numbers.find((number) => !faults.some((fault) => fault.number === number));
  if (wrong !== undefined) throw new UsageError(`--only: expected numbers from 1 to ${faults.length} with commas between them, got ${values.only}`);
  if (values.seed !== undefined && !/^\d{1,9}$/.test(values.seed)) throw new UsageError(`--seed: expected a whole number, got ${values.seed}`);
  return { ...values, chosen: numbers.map((number) => faults[number - 1]) };
}

runAsProgram(import.meta.url, async (...args) => {
  const { help, list, seed, chosen } = readArguments(args);
  if (help) return say(HELP);
  if (seed !== undefined)
    return drawPlaces(Number(seed)).forEach(({ part, file, line, text }) => say(`${part.padEnd(8)} ${file}:${line}: ${text.trim()}`));
  if (list) return chosen.forEach((fault) => say(`${row(fault)} (${fault.file})`));
  const changed = git('status', '--porcelain', '--untracked-files=no').trim();
  if (changed) {
    const how = 'Commit it, or put it aside with git stash. A fault that a killed run left is taken back by git restore.';
    throw new SetupError(`A fault is planted into unchanged sources only. Changed:\n${changed}`, how);
  }
  await prepare('quick');
  // The first failure is enough.
  process.env.MULTIHEAD_FAIL_FAST = process.env.GTEST_FAIL_FAST = '1';
  const clean = new Map();
  const built = new Set();
  const suites = new Map(chosen.flatMap(suitesFor).map((suite) => [suite.name, suite]));
  for (const suite of suites.values()) {
    await build(suite, built);
    clean.set(suite.name, fingerprint(suite.uses));
  }
  const commit = git('rev-parse', '--short', 'HEAD').trim();
  const results = [];
  for (const fault of chosen) {
    const begun = performance.now();
    say(`\n${row(fault)}`);
    const { number, part, file, fault: what } = fault;
    const found = await planted(fault, () => find(fault, clean));
    results.push({ number, part, file, fault: what, commit, ...found, seconds: Math.round((performance.now() - begun) / 1000) });
    store(results);
  }
  say('\nThe sources are as before; the builds follow.');
  for (const suite of suites.values()) await build(suite, (built.clear(), built));
  say('');
  for (const result of results)
    say(
      `${row(result)}\n    ${result.suite ? `${result.suite}: ${result.test}` : `NOT FOUND by ${result.ran.join('; ') || 'any suite: it changes the files of none'}`}`,
    );
  const found = results.filter(({ suite }) => suite).length;
  say(`\n${found} of ${results.length} faults are found; build/planted.json has the results.`);
  if (found < results.length) process.exitCode = 1;
});
