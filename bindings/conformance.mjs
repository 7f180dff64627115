// Runs a folder of golden cases through the built package in WebAssembly.
//
//     npm run conformance -- [DIR] [--simd=simd128|relaxed|both] [--device=cpu|gpu]
//
// --device=gpu: in Chromium on a GPU that SwiftShader emulates; what a GPU does not compute is listed as left out, with the reason.
// DIR holds pairs NAME.json and NAME.safetensors, and folders of models (conformance_models.mjs); default tests/conformance.
// It may be one such folder. Operations that are not supported yet count as failed, never as skipped.

import { spawnSync } from 'node:child_process';
import { readdir } from 'node:fs/promises';
import { dirname, extname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

import { largestErrors, messageOf, readJson, readTensors } from './conformance_case.mjs';
import { modelFolders, runModelFolder } from './conformance_models.mjs';
import { runCase } from './conformance_operations.mjs';

const script = fileURLToPath(import.meta.url);
const relaxedFlag = '--experimental-wasm-relaxed-simd';

const manifestsIn = async (folder) => (await readdir(folder)).filter((name) => extname(name) === '.json').sort();

async function runBuild(library, folder, simd) {
  const mh = await library.load({ simd });
  const models = await modelFolders(folder);
  const isModel = models.includes(folder);
  const manifests = isModel ? [] : await manifestsIn(folder);
  const count = { passed: 0, failed: 0 };
  const add = (name, reason) => {
    count[reason === undefined ? 'passed' : 'failed'] += 1;
    if (reason !== undefined) console.log(`FAIL ${name}: ${reason} [${simd}]`);
  };
  for (const manifest of manifests) {
    const prefix = manifest.replace(/\.json$/, '');
    let cases;
    let tensors;
    try {
      const { file = `${prefix}.safetensors`, ...others } = await readJson(join(folder, manifest));
      ({ cases } = others);
      tensors = await readTensors(library, join(folder, file));
    } catch (error) {
      add(`${prefix}/manifest`, messageOf(error));
      continue;
    }
    for (const entry of cases) {
      let reason;
      try {
        reason = runCase(mh, entry, tensors);
      } catch (error) {
        reason = messageOf(error);
      }
      add(`${prefix}/${entry.name}`, reason);
    }
  }
  for (const model of models) await runModelFolder(library, model, simd, add);
  if (count.passed + count.failed === 0) throw new Error(`there are no cases in ${folder}`);
  console.log(`${simd}: ${count.passed} passed, ${count.failed} failed`);
  return count;
}

async function main() {
  const { values, positionals } = parseArgs({
    options: { simd: { type: 'string', default: 'both' }, device: { type: 'string', default: 'cpu' } },
    allowPositionals: true,
  });
  const { simd, device } = values;
  if (!['simd128', 'relaxed', 'both'].includes(simd) || !['cpu', 'gpu'].includes(device) || positionals.length > 1) {
    throw new Error('usage: npm run conformance -- [DIR] [--simd=simd128|relaxed|both] [--device=cpu|gpu]');
  }
  const folder = resolve(positionals[0] ?? join(dirname(script), '..', 'tests', 'conformance'));

  if (device === 'gpu') {
    const { conformanceOnGpu } = await import('../tests/gpu/conformance.mjs');
    return (await conformanceOnGpu(folder)) ? 0 : 1;
  }
  const entries = Promise.all([import('./dist/index_node.js'), import('./dist/models_node.js')]);
  const [{ load, readSafetensors }, { openModel }] = await entries.catch((cause) => {
    throw new Error('the package is not built; run `npm run build` first', { cause });
  });
  const library = { load, readSafetensors, openModel };
  // load() does not choose relaxed in every engine that supports it.
  const hasRelaxed = await library.load({ simd: 'relaxed' }).then(
    () => true,
    ({ code, got }) => {
      if (code === 'E_LOAD' && got === '"relaxed"') return false;
      throw new Error('the relaxed build cannot be loaded');
    },
  );
  if (!hasRelaxed && simd !== 'simd128' && Number(process.versions.node.split('.')[0]) < 22) {
    if (!process.execArgv.includes(relaxedFlag)) {
      const again = [...process.execArgv, relaxedFlag, script, ...process.argv.slice(2)];
      return spawnSync(process.execPath, again, { stdio: 'inherit' }).status ?? 1;
    }
  }
  const builds = simd === 'both' ? ['simd128', ...(hasRelaxed ? ['relaxed'] : [])] : [simd];

  let passed = 0;
  let failed = 0;
  for (const build of builds) {
    const count = await runBuild(library, folder, build);
    passed += count.passed;
    failed += count.failed;
  }
  // Beside the counts, which others read.
  console.error(largestErrors());
  console.log(`${passed} passed, ${failed} failed`);
  return failed === 0 ? 0 : 1;
}

try {
  process.exitCode = await main();
} catch (error) {
  console.error(messageOf(error));
  process.exitCode = 2;
}
