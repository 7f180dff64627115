// Peers of the WebAssembly package that run in the same process.

import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { onnxruntime } from './onnxruntime.mjs';
import { tfjs } from './tfjs.mjs';

async function onnxruntimeWeb(folder) {
  const entry = join(folder, 'node_modules', 'onnxruntime-web', 'dist', 'ort.node.min.mjs');
  const ort = await import(pathToFileURL(entry).href);
  ort.env.wasm.numThreads = 1; // like the package
  ort.env.logLevel = 'fatal';
  return onnxruntime(ort, { executionProviders: ['wasm'], graphOptimizationLevel: 'all' });
}

async function tensorflow(folder) {
  const require = createRequire(join(folder, 'package.json'));
  const tf = require('@tensorflow/tfjs-core');
  const { setWasmPaths } = require('@tensorflow/tfjs-backend-wasm');
  setWasmPaths(join(folder, 'node_modules', '@tensorflow', 'tfjs-backend-wasm', 'dist', '/'));
  await tf.setBackend('wasm');
  return tfjs(tf);
}

/** @param {string} folder where native/dev/bench/peers.mjs has installed the peers */
export async function loadPeers(folder) {
  return { 'onnxruntime-web': await onnxruntimeWeb(folder), tfjs: await tensorflow(folder) };
}
