// Tests the kernels of the browser's GPU in Chromium on SwiftShader, and writes build/test-results/gpu.json:
//
//   node tests/gpu/run.mjs [--quick] [--cases=N] [--seed=N] [part of a test's name]...
//
// --quick: half a minute, of which most is the compilation of kernels of one width.

import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { ROOT } from '../../native/dev/build.mjs';
import { openPage, whyNoChromium } from './chromium.mjs';

const { values, positionals } = parseArgs({
  options: { quick: { type: 'boolean', default: false }, cases: { type: 'string' }, seed: { type: 'string' } },
  allowPositionals: true,
});
const start = performance.now();
const seed = Number(values.seed ?? process.env.MULTIHEAD_SEED ?? Date.now() % 1_000_000);
const outcome = { passed: 0, failed: 0, failures: [], skipped: [] };
if (whyNoChromium()) outcome.skipped.push({ name: 'kernels of a GPU', reason: whyNoChromium() });
else {
  const { call, close } = await openPage();
  const options = { quick: values.quick, cases: values.cases && Number(values.cases), seed, names: positionals };
  Object.assign(outcome, await call('run', options).finally(close));
}
console.log(`${outcome.passed} passed, ${outcome.failed} failed, ${((performance.now() - start) / 1000).toFixed(1)} s, seed ${seed}`);
const results = join(ROOT, 'build', 'test-results');
await mkdir(results, { recursive: true });
await writeFile(join(results, 'gpu.json'), `${JSON.stringify(outcome, null, 2)}\n`);
process.exit(outcome.failed > 0 ? 1 : 0);
