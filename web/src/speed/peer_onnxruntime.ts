// ONNX Runtime Web, from this page's own server.

import wasm from 'onnxruntime-web/ort-wasm-simd-threaded.wasm?url';
import * as ort from 'onnxruntime-web/wasm';
import { onnxruntime } from '../../../bindings/bench/peers/onnxruntime.mjs';
import type { MakePeer } from './peers.js';

ort.env.wasm.numThreads = 1; // like the module; more threads would need workers that the security policy forbids
ort.env.wasm.wasmPaths = { wasm };
ort.env.logLevel = 'fatal';

export const make = onnxruntime(ort, { executionProviders: ['wasm'], graphOptimizationLevel: 'all' }) as MakePeer;
