// The software bill of materials of the package, in CycloneDX: sbom.template.json with versions filled in. It lists the
// third-party code in the WebAssembly modules and the glue, in the versions that the set-up found or fetched.

import { readFileSync } from 'node:fs';

const read = (path) => readFileSync(new URL(path, import.meta.url), 'utf8');

/** Contains no date or random number, so that the same sources give the same bytes. */
export function billOfMaterials() {
  const { version, description } = JSON.parse(read('package.json'));
  const { emscripten, highway } = JSON.parse(read('../build/toolchain/manifest.json'));
  const values = { multihead: version, description, emscripten: emscripten.version, highway: highway.version };
  return JSON.parse(read('sbom.template.json').replace(/\$\{(\w+)\}/g, (_, name) => values[name]));
}
