// `npm run fuzz -- [--seconds 3600] [cache|model|options|safetensors …]`: builds the fuzz targets and runs them in parallel.
//
// Interesting inputs stay in build/fuzz/corpus, where the next run starts. An input that makes a target fail is stored
// in build/fuzz/found; to run the target only on that input, give it the file as an argument. The targets are in
// tests/fuzz/.
import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT, buildPreset } from './build.mjs';
import { SetupError, run, say, step } from './console.mjs';
import { runAsProgram } from './program.mjs';
import { setup } from './setup.mjs';

/** Number of inputs that the tests try per target; takes a few seconds. */
const SHORT_RUNS = { cache: 2000, model: 2000, options: 4000, safetensors: 20000 };
export const FUZZ_TARGETS = Object.keys(SHORT_RUNS);
const LIMITS = ['-max_len=2048', '-timeout=60', '-rss_limit_mb=4096'];
/** Failed allocations return null instead of counting as findings; calls must survive that. */
export const FUZZ_ENVIRONMENT = {
  ...process.env,
  ASAN_OPTIONS: 'allocator_may_return_null=1:max_allocation_size_mb=256',
};

/** The command of a short run with the same pseudo-random bytes every time, on the sanitizers' build of the tests. */
export const shortRun = (name) => [join(ROOT, 'build', 'asan', 'tests', `fuzz_${name}`), '-seed=1', `-runs=${SHORT_RUNS[name]}`];

function readArguments(given) {
  const names = [];
  let seconds = 60;
  for (let i = 0; i < given.length; ++i) {
    if (given[i] === '--seconds') {
      seconds = Number(given[++i]);
    } else if (FUZZ_TARGETS.includes(given[i])) {
      names.push(given[i]);
    } else {
      throw new SetupError(`${given[i]}: expected --seconds N or names out of ${FUZZ_TARGETS.join(', ')}`);
    }
  }
  if (!Number.isInteger(seconds) || seconds < 1) throw new SetupError('--seconds: expected a whole number above 0');
  return { seconds, names: names.length ? names : FUZZ_TARGETS };
}

/** Runs a target for `seconds` and prints its number of runs; throws if the target fails. */
async function fuzz(name, seconds) {
  const corpus = join(ROOT, 'build', 'fuzz', 'corpus', name);
  const found = join(ROOT, 'build', 'fuzz', 'found', `${name}-`);
  mkdirSync(corpus, { recursive: true });
  mkdirSync(join(ROOT, 'build', 'fuzz', 'found'), { recursive: true });
  const program = join(ROOT, 'build', 'fuzz', 'tests', `fuzz_${name}`);
  // Without libFuzzer a target has no corpus, and gets different bytes in every run.
  const instrumented = /HAS_LIBFUZZER:\w+=(1|TRUE|ON)/.test(readFileSync(join(ROOT, 'build', 'fuzz', 'CMakeCache.txt'), 'utf8'));
  const flags = instrumented ? [...LIMITS, '-print_final_stats=1', `-artifact_prefix=${found}`, corpus] : [`-seed=${Date.now()}`, '-max_len=2048'];
  return step(`Fuzz ${name}`, async (tell) => {
    const output = await run([program, `-max_total_time=${seconds}`, ...flags], { cwd: ROOT, env: FUZZ_ENVIRONMENT });
    const runs = /stat::number_of_executed_units: *(\d+)/.exec(output) ?? /(\d+) runs/.exec(output);
    tell(`${runs?.[1] ?? 'no'} runs without a finding`);
  });
}

runAsProgram(import.meta.url, async (...given) => {
  const { seconds, names } = readArguments(given);
  await setup({ purpose: 'test' });
  await buildPreset('fuzz', { target: names.map((name) => `fuzz_${name}`) });
  const results = await Promise.allSettled(names.map((name) => fuzz(name, seconds)));
  for (const { reason } of results) if (reason) say(`\n${reason.message}\n${reason.output ?? ''}`);
  if (results.some(({ reason }) => reason)) throw new SetupError('A fuzzer found something: see above');
});
