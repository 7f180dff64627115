// The tests of kernels, in a page. Random calls and golden cases on the GPU are compared with float64 and with the CPU.

import { load } from '/dist/index.js';
import { otherCalls } from './calls.mjs';
import { POISON } from './compare.mjs';
import { largestErrors } from '../../bindings/conformance_case.mjs';
import { Count, goldenCases, goldenModels } from './golden_cases.mjs';
import { modelTests } from './models.mjs';
import { randomCases } from './random_calls.mjs';

/** @type {Promise<import('multihead').Multihead>} */
const loaded = load();

/** Devices to test with: all that the adapter has; no subgroups; WebGPU's smallest limits. */
const kinds = {
  all: async () => undefined,
  'no subgroups': async (adapter) => {
    const { maxStorageBuffersPerShaderStage, maxComputeWorkgroupStorageSize } = adapter.limits;
    return adapter.requestDevice({ requiredLimits: { maxStorageBuffersPerShaderStage, maxComputeWorkgroupStorageSize } });
  },
  'default limits': async (adapter) => adapter.requestDevice(),
};

/** Opens a device whose buffers begin with poison. `poison()` fills all of them again. */
async function opened(kind) {
  const mh = await loaded;
  const adapter = await navigator.gpu.requestAdapter();
  if (adapter === null) throw new Error('Chromium has no adapter');
  const device = await kinds[kind](adapter);
  const gpu = await mh.gpu(device === undefined ? { adapter } : { device });
  const buffers = new Set();
  const create = gpu.device.createBuffer.bind(gpu.device);
  gpu.device.createBuffer = (given) => {
    const buffer = create(given);
    if (given.usage & GPUBufferUsage.STORAGE) {
      buffers.add(buffer);
      buffer.destroy = () => {
        buffers.delete(buffer);
        GPUBuffer.prototype.destroy.call(buffer);
      };
      fill(buffer);
    }
    return buffer;
  };
  const fill = (buffer) => gpu.device.queue.writeBuffer(buffer, 0, new Uint32Array(buffer.size / 4).fill(POISON));
  const uncaptured = [];
  gpu.device.addEventListener('uncapturederror', ({ error }) => uncaptured.push(error.message));
  return { mh, gpu, kind, uncaptured, poison: () => buffers.forEach(fill), close: () => (gpu.dispose(), device?.destroy()) };
}

const open = new Map();
/** One device of each kind for all tests, since their pipelines take seconds. */
const deviceOf = (kind) => {
  if (!open.has(kind)) open.set(kind, opened(kind));
  return open.get(kind);
};

const golden = (name, thorough, run) => ({
  ...{ name, kind: 'all', thorough },
  async run(on, options) {
    const failures = [];
    const count = new Count((line) => failures.push(line));
    const done = await run(on, count, options);
    if (count.failed > 0) throw new Error(failures.slice(0, 10).join('\n'));
    return `${done ?? ''} ${count}`;
  },
});
const goldenTests = [
  golden('golden cases of operations and modules', true, goldenCases),
  golden('golden models', false, (_, count, { quick, seed }) => goldenModels(count, { seconds: quick ? 25 : 150, seed })),
];

/** name, kind of device, thorough: not in a quick run, run() which may return a note. */
const tests = [...randomCases, ...otherCalls, ...goldenTests, ...modelTests];

globalThis.tests = {
  async conformance() {
    const count = new Count((line) => console.log(line));
    await goldenCases(await deviceOf('all'), count);
    await goldenModels(count);
    const { passed, failed, leftOut } = count;
    return { passed, failed, leftOut, errors: largestErrors() };
  },
  async run({ quick, cases, seed, names }) {
    const outcome = { passed: 0, failed: 0, failures: [] };
    for (const { name, kind, thorough, run } of tests) {
      if ((quick && thorough) || (names.length > 0 && !names.some((part) => name.includes(part)))) continue;
      const start = performance.now();
      try {
        const on = await deviceOf(kind);
        const note = await run(on, { quick, cases, seed });
        if (on.uncaptured.length > 0) throw new Error(on.uncaptured.splice(0)[0]);
        outcome.passed += 1;
        console.log(`✓ ${name} — ${Math.round(performance.now() - start)} ms${note ? `, ${note}` : ''}`);
      } catch (error) {
        outcome.failed += 1;
        outcome.failures.push({ name, message: error.message });
        console.log(`✗ ${name} — ${error.stack}`);
      }
    }
    return outcome;
  },
};
