// `npm run bench -- [native|wasm] [options]`: builds and runs the benchmarks, one after the other when neither is named.
//
// Options go to the program: Google Benchmark's for `native` (--benchmark_filter=REGEX, --benchmark_format=json, …),
// those of bindings/bench.mjs for `wasm`.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { ROOT, buildPackage, buildPreset, buildWasm } from './build.mjs';
import { SetupError } from './console.mjs';
import { runAsProgram } from './program.mjs';
import { setup } from './setup.mjs';

const BENCHMARKS = {
  native: {
    build: () => buildPreset('native'),
    command: [join(ROOT, 'build', 'native', 'native', 'multihead-bench')],
  },
  wasm: {
    build: async () => {
      await buildWasm({ tests: true });
      await buildPackage();
    },
    command: [process.execPath, join(ROOT, 'bindings', 'bench.mjs')],
  },
};

runAsProgram(import.meta.url, async (...args) => {
  const named = args[0] && !args[0].startsWith('-') ? args.shift() : null;
  if (named && !BENCHMARKS[named]) throw new SetupError(`Expected native or wasm, got ${named}`);
  if (!named && args.length) throw new SetupError('Options need a benchmark in front of them: native or wasm');
  const chosen = named ? [BENCHMARKS[named]] : Object.values(BENCHMARKS);
  await setup({ purpose: 'all' });
  for (const { build } of chosen) await build();
  for (const { command } of chosen) {
    const [program, ...rest] = command;
    const { status, signal, error } = spawnSync(program, [...rest, ...args], { stdio: 'inherit' });
    if (status !== 0) throw new SetupError(`The benchmark ended with ${error?.message ?? signal ?? status}`);
  }
});
