// Finds the peers of the speed section for the build. native/dev/bench/peers.mjs installs them on request.

import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Alias } from 'vite';

const files = {
  'onnxruntime-web/wasm': 'onnxruntime-web/dist/ort.wasm.bundle.min.mjs',
  'onnxruntime-web/ort-wasm-simd-threaded.wasm?url': 'onnxruntime-web/dist/ort-wasm-simd-threaded.wasm?url',
  '@tensorflow/tfjs-core': '@tensorflow/tfjs-core/dist/index.js',
  '@tensorflow/tfjs-backend-wasm': '@tensorflow/tfjs-backend-wasm/dist/index.js',
  '@tensorflow/tfjs-backend-wasm/dist/tfjs-backend-wasm-simd.wasm?url': '@tensorflow/tfjs-backend-wasm/dist/tfjs-backend-wasm-simd.wasm?url',
};

/** The folder of the packages if it has all files that the page needs; else undefined. */
export const foundPeers = (folder: string): string | undefined =>
  Object.values(files).every((file) => existsSync(folder + file.replace('?url', ''))) ? folder : undefined;

/** Without peers, the module that loads them is replaced by an empty one. */
export function aliasesOfPeers(folder: string | undefined): Alias[] {
  if (folder === undefined) {
    const empty = fileURLToPath(new URL('./src/speed/no_peers.ts', import.meta.url));
    return [{ find: /^\.\/peers\.js$/, replacement: empty }];
  }
  return Object.entries(files).map(([name, file]) => ({
    find: new RegExp(`^${name.replace(/[.?/]/g, '\\$&')}$`),
    replacement: folder + file,
  }));
}
