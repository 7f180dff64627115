// TensorFlow.js with its WebAssembly backend, from this page's own server.

import { setWasmPaths } from '@tensorflow/tfjs-backend-wasm';
import wasm from '@tensorflow/tfjs-backend-wasm/dist/tfjs-backend-wasm-simd.wasm?url';
import * as tf from '@tensorflow/tfjs-core';
import { tfjs } from '../../../bindings/bench/peers/tfjs.mjs';
import type { MakePeer } from './peers.js';

tf.env().set('WASM_HAS_MULTITHREAD_SUPPORT', false); // its threads need a blob: worker, which the security policy forbids
// TensorFlow.js needs an address for each of the three names, and fetches one of them.
const names = ['tfjs-backend-wasm-simd.wasm', 'tfjs-backend-wasm-threaded-simd.wasm', 'tfjs-backend-wasm.wasm'];
setWasmPaths(Object.fromEntries(names.map((name) => [name, wasm])));
if (!(await tf.setBackend('wasm'))) throw new Error('its WebAssembly backend did not start');

export const make = tfjs(tf) as MakePeer;
