// Golden cases on the GPU, in a page. An operation of conformance_operations.mjs reads the results of its calls at once, which a GPU
// cannot give: so it ends at the first call, and runs again once the results are read, until it has all of them.

import { readSafetensors } from '/dist/index.js';
import { messageOf, NotSupported } from '../../bindings/conformance_case.mjs';
import { runCase } from '../../bindings/conformance_operations.mjs';

/** Thrown where results are not read yet. */
class Pending {
  constructor(read) {
    this.read = read;
  }
}

const calls = ['attention', 'attentionVarlen', 'rotate', 'linear'];

async function numbersOf(result) {
  if (typeof result.read === 'function') return { shape: [...result.shape], data: await result.toFloat32() };
  if (Array.isArray(result)) return Promise.all(result.map(numbersOf));
  return Object.fromEntries(await Promise.all(Object.entries(result).map(async ([name, tensor]) => [name, await numbersOf(tensor)])));
}

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
  const others = {
    get: (target, name) => {
      if (name in target) return target[name];
      throw new NotSupported(`${String(name)} on a GPU`);
    },
  };
  const own = Object.fromEntries(calls.filter((name) => name in gpu).map((name) => [name, (...given) => call(name, given)]));
  return new Proxy({ ...own, scope: (run) => run(), alibiSlopes: mh.alibiSlopes }, others);
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

/** Runs the cases of manifests below /cases/; `log` gets a line for each that fails. */
export async function goldenCases(on, manifests, { log = () => {}, wanted = () => true } = {}) {
  const count = { passed: 0, failed: 0 };
  for (const manifest of manifests) {
    const prefix = manifest.replace(/\.json$/, '');
    const { file = `${prefix}.safetensors`, cases } = await (await fetch(`/cases/${manifest}`)).json();
    const { tensors } = readSafetensors(new Uint8Array(await (await fetch(`/cases/${file}`)).arrayBuffer()));
    for (const entry of cases.filter(wanted)) {
      const reason = await on.mh.scope(() => reasonOf(on, entry, tensors).catch(messageOf));
      count[reason === undefined ? 'passed' : 'failed'] += 1;
      if (reason !== undefined) log(`FAIL ${prefix}/${entry.name}: ${reason} [gpu]`);
    }
  }
  return count;
}
