// Types for modules without types: the plain JavaScript of the benchmarks, and peers that may not be installed.

declare module '*/bindings/bench/inputs.mjs' {
  import type { Shape } from './messages.js';
  /** q, k and v, row-major. */
  export function inputsOf(shape: Shape): { shape: number[]; data: Float32Array<ArrayBuffer> }[];
}

declare module '*/bindings/bench/peers/onnxruntime.mjs' {
  export function onnxruntime(ort: unknown, options: object): unknown;
}

declare module '*/bindings/bench/peers/tfjs.mjs' {
  export function tfjs(tf: unknown): unknown;
}

declare module 'onnxruntime-web/wasm' {
  export const env: { wasm: { numThreads: number; wasmPaths: { wasm: string } }; logLevel: string };
}

declare module '@tensorflow/tfjs-core' {
  export function env(): { set(name: string, value: boolean): void };
  export function setBackend(name: string): Promise<boolean>;
}

declare module '@tensorflow/tfjs-backend-wasm' {
  export function setWasmPaths(paths: Record<string, string>): void;
}
