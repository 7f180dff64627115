// Types for peers that may not be installed.

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
