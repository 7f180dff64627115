// openModel() of the sources of the package, for tests that look into the core.

import { createOpenModel } from '../src/models/open.ts';

const fileOf = (build: string): URL => new URL(`../dist/multihead-${build}.wasm`, import.meta.url);

/** Opens a model with the sources of the package. */
export const openFromSources = createOpenModel(
  () => ({
    relaxed: () => fileOf('models-relaxed'),
    simd128: () => fileOf('models-simd128'),
    part: (part, simd) => fileOf(`${part}-${simd}`),
  }),
  { make: () => undefined },
);
