// Size of each entry point as servers send it, in Brotli and in gzip: minified JavaScript and WebAssembly. For the table in
// README.md.
//
//     node sizes.mjs

import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { brotliCompressSync, gzipSync } from 'node:zlib';
import { rolldown } from 'rolldown';
import { partNames } from './tables.mjs';

const at = (name) => fileURLToPath(new URL(`dist/${name}`, import.meta.url));
/** Sizes in bytes with the best quality of both encodings; 11 is the default of Brotli. */
const encoded = (bytes) => ({ brotli: brotliCompressSync(bytes).length, gzip: gzipSync(bytes, { level: 9 }).length });
const minus = (a, b) => ({ brotli: a.brotli - b.brotli, gzip: a.gzip - b.gzip });
const file = (name) => encoded(readFileSync(at(name)));

/** Bundles these modules together, as a page would load them. */
async function script(...modules) {
  const all = modules.map((name) => `export * from ${JSON.stringify(at(`${name}.js`))};`).join('\n');
  const source = { name: 'entry', resolveId: (id) => (id === 'entry' ? id : null), load: (id) => (id === 'entry' ? all : null) };
  const bundle = await rolldown({ input: 'entry', external: [/^@huggingface\//], plugins: [source], logLevel: 'silent' });
  const { output } = await bundle.generate({ format: 'esm', minify: true });
  await bundle.close();
  // Without what dynamic imports load.
  const chunks = new Map(output.map((chunk) => [chunk.fileName, chunk]));
  const loaded = new Set([output[0].fileName]);
  for (const name of loaded) for (const imported of chunks.get(name).imports) if (chunks.has(imported)) loaded.add(imported);
  return encoded(Buffer.from([...loaded].map((name) => chunks.get(name).code).join('')));
}

/**
 * Returns the sizes by entry point. The sizes of `multihead/training`, `multihead/lab`, `multihead/pool` and of what
 * `mh.gpu()` loads are in addition to `multihead`.
 */
export async function sizes() {
  const [all, core, models, training, lab, pool, gpu] = await Promise.all([
    script('index'),
    script('core'),
    script('models'),
    script('index', 'training'),
    script('index', 'lab'),
    script('index', 'pool'),
    script('index', 'gpu'),
  ]);
  return {
    multihead: { script: all, wasm: file('multihead-simd128.wasm') },
    'multihead/training': { script: minus(training, all) },
    'multihead/lab': { script: minus(lab, all) },
    'multihead/pool': { script: minus(pool, all), worker: file('pool_worker.js') },
    'gpu.js': { script: minus(gpu, all) },
    'multihead/core': { script: core, wasm: file('multihead-core-simd128.wasm') },
    'multihead/models': { script: models, wasm: file('multihead-models-simd128.wasm') },
    'multihead/models_worker.js': { worker: file('models_worker.js') },
    'multihead/inline': { script: file('inline.js') },
    'multihead/relaxed.wasm': { wasm: file('multihead-relaxed.wasm') },
    'multihead/core-relaxed.wasm': { wasm: file('multihead-core-relaxed.wasm') },
    'multihead/models-relaxed.wasm': { wasm: file('multihead-models-relaxed.wasm') },
    ...Object.fromEntries(partNames.map((part) => [`multihead/${part}-relaxed.wasm`, { wasm: file(`multihead-${part}-relaxed.wasm`) }])),
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  for (const [name, parts] of Object.entries(await sizes())) {
    const written = ['brotli', 'gzip'].map((encoding) => {
      const total = Object.values(parts).reduce((sum, size) => sum + size[encoding], 0);
      const each = Object.entries(parts).map(([part, size]) => `${part} ${(size[encoding] / 1000).toFixed(1)}`);
      return `${encoding} ${(total / 1000).toFixed(1)} kB (${each.join(', ')})`;
    });
    console.log(`${name}: ${written.join(', ')}`);
  }
}
