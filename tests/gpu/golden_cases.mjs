// Golden cases on the GPU, in a page: of operations, of modules by operations, and of models. An operation of conformance_operations.mjs
// reads the results of its calls at once, which a GPU cannot give: so it ends at the first call, and runs again once the results are read,
// until it has all of them.

import { readSafetensors } from '/dist/index.js';
import { openModel } from '/dist/models.js';
import { largestErrors, messageOf, NotSupported, readJson } from '../../bindings/conformance_case.mjs';
import { modelFolders, runModelFolder } from '../../bindings/conformance_models.mjs';
import { runCase } from '../../bindings/conformance_operations.mjs';
import { readdir, readFile } from './fetched_files.mjs';
import { modulesOf } from './golden_modules.mjs';

/** Thrown where results are not read yet. */
class Pending {
  constructor(read) {
    this.read = read;
  }
}

const calls = ['attention', 'attentionVarlen', 'rotate', 'linear'];
const leftOutCalls = { attentionBackward: 'gradients, which the CPU computes', backward: 'gradients, which the CPU computes' };

async function numbersOf(result) {
  if (typeof result.read === 'function') return { shape: [...result.shape], data: await result.toFloat32() };
  if (Array.isArray(result)) return Promise.all(result.map(numbersOf));
  return Object.fromEntries(await Promise.all(Object.entries(result).map(async ([name, tensor]) => [name, await numbersOf(tensor)])));
}

/** Throws where a case needs what `target` has not. */
const strict = (target) =>
  new Proxy(target, {
    get: (object, name) => {
      if (name in object) return object[name];
      throw new NotSupported(leftOutCalls[name] ?? `${String(name)} on a GPU`);
    },
  });

/** The calls of `mh` by the GPU. `known` has the results of the first of them. */
function facade({ mh, gpu }, known) {
  let next = 0;
  const call = (name, given) => {
    const at = next;
    next += 1;
    if (at < known.length) return known[at];
    const result = gpu[name](...given);
    throw new Pending(async () => known.push(await numbersOf(result)));
  };
  const own = Object.fromEntries(calls.map((name) => [name, (...given) => call(name, given)]));
  const modules = Object.entries(modulesOf(own)).map(([name, make]) => [name, (config) => strict(make(config))]);
  return strict({ ...own, ...Object.fromEntries(modules), scope: (run) => run(), alibiSlopes: mh.alibiSlopes });
}

async function reasonOf(on, entry, tensors) {
  const known = [];
  for (;;) {
    try {
      return runCase(facade(on, known), entry, tensors);
    } catch (error) {
      if (!(error instanceof Pending)) return messageOf(error);
      await error.read();
    }
  }
}

/** Counts cases. Those that a GPU does not compute are left out, with the reason. */
export class Count {
  passed = 0;
  failed = 0;
  leftOut = {};
  constructor(log) {
    this.log = log;
  }
  add(name, reason) {
    // Options that a model on a GPU refuses, and gradients, which need its weights on the CPU.
    const why = /^not supported yet: (.*)|^.*expected .* on a GPU.*/.exec(reason ?? '')?.findLast((text) => text !== undefined);
    if (why !== undefined) (this.leftOut[why] ??= []).push(name.replace(/ \(config\w*\.json\)$/, ''));
    else if (reason === undefined) this.passed += 1;
    else {
      this.failed += 1;
      this.log(`FAIL ${name}: ${reason} [gpu]`);
    }
  }
  toString() {
    const left = Object.entries(this.leftOut).map(([why, { length }]) => `${length} left out (${why})`);
    return [`${this.passed} cases`, ...left, largestErrors()].join(', ');
  }
}

/** Runs the cases of operations and modules below /cases/. */
export async function goldenCases(on, count) {
  const manifests = (await readdir('/cases')).filter((name) => name.endsWith('.json')).sort();
  for (const manifest of manifests) {
    const prefix = manifest.replace(/\.json$/, '');
    const { file = `${prefix}.safetensors`, cases } = await readJson(`/cases/${manifest}`);
    const { tensors } = readSafetensors(await readFile(`/cases/${file}`));
    for (const entry of cases) count.add(`${prefix}/${entry.name}`, await on.mh.scope(() => reasonOf(on, entry, tensors).catch(messageOf)));
  }
}

/** A model whose every use throws why there is none on a GPU. */
const absentModel = (why) =>
  new Proxy(
    { dispose: () => {} },
    {
      get: (object, name) => {
        if (name in object || name === 'then') return object[name];
        throw new NotSupported(why);
      },
    },
  );

/** A model on the GPU. */
async function openOnGpu(source) {
  try {
    const folder = typeof source === 'string' ? new URL(`${source}/`, location.href).href : source;
    return await openModel(folder, { device: 'gpu' });
  } catch (error) {
    if (error.argument !== 'device') throw error;
    return absentModel(error.got);
  }
}

/** Runs cases of golden models below /cases/, in an order that depends on the seed, for as many seconds. */
export async function goldenModels(count, { seconds = Infinity, seed = 0 } = {}) {
  const end = performance.now() + 1000 * seconds;
  const folders = await modelFolders('/cases');
  // One model stays open, so that the device and its pipelines do.
  using _ = await openOnGpu('/kept');
  let done = 0;
  while (done < folders.length && performance.now() < end) {
    const folder = folders[(seed + done) % folders.length];
    await runModelFolder({ readSafetensors, openModel: openOnGpu }, folder, 'gpu', (name, reason) => count.add(name, reason));
    done += 1;
  }
  return `${done} of ${folders.length} models`;
}
