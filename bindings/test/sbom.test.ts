// Checks that dist/sbom.cdx.json is valid against CycloneDX's own schema, and complete.

import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { Ajv } from 'ajv';
import addFormats from 'ajv-formats';
import { beforeAll, expect, test } from 'vitest';

interface Bill {
  bomFormat: string;
  specVersion: string;
  metadata: { component: Component };
  components: Component[];
  dependencies: { ref: string; dependsOn: string[] }[];
}

interface Component {
  'bom-ref': string;
  name: string;
  version: string;
  licenses: object[];
  externalReferences?: { url: string }[];
}

const json = async (path: string | URL): Promise<unknown> => JSON.parse(await readFile(path, 'utf8'));

let bill: Bill;
let complaintsAbout: (document: unknown) => string[];
beforeAll(async () => {
  bill = (await json(new URL('../dist/sbom.cdx.json', import.meta.url))) as Bill;

  const library = createRequire(import.meta.url).resolve('@cyclonedx/cyclonedx-library/package.json');
  const schema = (name: string) => json(join(dirname(library), 'res', 'schema', `${name}.SNAPSHOT.schema.json`));
  // Strict mode is off, because the schema has its own keywords, and formats that the last test below checks.
  const ajv = new Ajv({ strict: false, allErrors: true, formats: { 'iri-reference': true, 'idn-email': true } });
  addFormats.default(ajv);
  for (const name of ['spdx', 'jsf-0.82', 'cryptography-defs']) {
    // Registers the schema under the name that the library's copy refers to.
    ajv.addSchema((await schema(name)) as object, `http://cyclonedx.org/schema/${name}.SNAPSHOT.schema.json`);
  }
  const validate = ajv.compile((await schema(`bom-${bill.specVersion}`)) as object);
  complaintsAbout = (document) => {
    validate(document);
    return (validate.errors ?? []).map(({ instancePath, message }) => `${instancePath} ${message}`);
  };
});

test('follows the schema of its version', () => {
  expect(complaintsAbout(bill)).toEqual([]);
});

test.each<[string, (bill: Bill) => void]>([
  ['another format', (each) => (each.bomFormat = 'SPDX')],
  ['a component without a name', (each) => delete (each.components[0] as Partial<Component>).name],
  ['a licence that SPDX does not have', (each) => (each.metadata.component.licenses = [{ license: { id: 'Apache' } }])],
  ['a field that there is not', (each) => Object.assign(each.components[0] as Component, { size: 1 })],
  ['a dependency without a name', (each) => delete (each.dependencies[0] as { ref?: string }).ref],
])('would not with %s', (_, change) => {
  const changed = structuredClone(bill);
  change(changed);
  expect(complaintsAbout(changed)).not.toEqual([]);
});

test('names everything once, and refers to nothing else', () => {
  const all = [bill.metadata.component, ...bill.components];
  const names = all.map((component) => component['bom-ref']);
  expect(new Set(names).size).toBe(names.length);
  expect(bill.dependencies.map(({ ref }) => ref)).toEqual(names);
  expect(bill.dependencies[0]?.dependsOn).toEqual(names.slice(1));
  for (const { name, version, externalReferences = [] } of all) {
    expect(version, name).toMatch(/^\d+\.\d+\.\d+/);
    for (const { url } of externalReferences) expect(new URL(url).protocol).toBe('https:');
  }
});
