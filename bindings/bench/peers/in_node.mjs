// Peers of the WebAssembly package that run in the same process.

import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { onnxruntime } from './onnxruntime.mjs';
import { tfjs } from './tfjs.mjs';

/** onnxruntime-web with a number of threads, which a process can set only once. */
export async function onnxruntimeWeb(folder, threads) {
  const entry = join(folder, 'node_modules', 'onnxruntime-web', 'dist', 'ort.node.min.mjs');
  const ort = await import(pathToFileURL(entry).href);
  ort.env.wasm.numThreads = threads;
  ort.env.logLevel = 'fatal';
  return { ort, peerOf: onnxruntime(ort, { executionProviders: ['wasm'], graphOptimizationLevel: 'all' }) };
}

async function tensorflow(folder) {
  const require = createRequire(join(folder, 'package.json'));
  const tf = require('@tensorflow/tfjs-core');
  const { setWasmPaths } = require('@tensorflow/tfjs-backend-wasm');
  setWasmPaths(join(folder, 'node_modules', '@tensorflow', 'tfjs-backend-wasm', 'dist', '/'));
  await tf.setBackend('wasm');
  return tfjs(tf);
}

const PEERS = {
  // One thread, like the package.
  'onnxruntime-web': { file: 'onnxruntime-web', load: async (folder) => (await onnxruntimeWeb(folder, 1)).peerOf },
  tfjs: { file: '@tensorflow/tfjs-backend-wasm', load: tensorflow },
};

/** The peers that are installed in a folder. One that cannot be loaded fails in each case, with its message. */
export async function loadPeers(folder) {
  const there = Object.entries(PEERS).filter(([, { file }]) => existsSync(join(folder, 'node_modules', file)));
  const failing = (error) => async () => {
    throw error;
  };
  return Object.fromEntries(await Promise.all(there.map(async ([name, { load }]) => [name, await load(folder).catch(failing)])));
}
