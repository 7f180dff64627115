// The software bill of materials of the package, in CycloneDX. Lists the third-party code in the WebAssembly modules
// and the glue. The versions are those that the set-up found or fetched.

import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const read = (path) =>
  JSON.parse(readFileSync(fileURLToPath(new URL(path, import.meta.url)), 'utf8'));

const linked = [
  {
    name: 'emscripten',
    description:
      'The glue, Embind, and its C and C++ libraries (musl, libc++, compiler-rt, dlmalloc), of the same release',
    license: { expression: 'MIT AND Apache-2.0 WITH LLVM-exception' },
    url: 'https://github.com/emscripten-core/emscripten',
  },
  {
    name: 'highway',
    description: 'SIMD operations: headers',
    license: { expression: 'Apache-2.0 OR BSD-3-Clause' },
    url: 'https://github.com/google/highway',
  },
];

/** Contains no date or random number, so that the same sources give the same bytes. */
export function billOfMaterials() {
  const { name, version, description, license } = read('package.json');
  const toolchain = read('../build/toolchain/manifest.json');
  const own = `pkg:npm/${name}@${version}`;
  const licenses = [{ license: { id: license } }];
  const components = linked.map(({ name, description, license, url }) => ({
    type: 'library',
    'bom-ref': `pkg:generic/${name}@${toolchain[name].version}`,
    name,
    version: toolchain[name].version,
    description,
    licenses: [license],
    purl: `pkg:generic/${name}@${toolchain[name].version}`,
    externalReferences: [{ type: 'vcs', url }],
  }));
  return {
    bomFormat: 'CycloneDX',
    specVersion: '1.6',
    version: 1,
    metadata: {
      component: { type: 'library', 'bom-ref': own, name, version, description, licenses, purl: own },
    },
    components,
    dependencies: [
      { ref: own, dependsOn: components.map((component) => component['bom-ref']) },
      ...components.map((component) => ({ ref: component['bom-ref'], dependsOn: [] })),
    ],
  };
}
