// Checks that dist/sbom.cdx.json is complete. Its template, sbom.template.json, was checked against CycloneDX's schema 1.6;
// check it again after a change of its form: https://github.com/CycloneDX/cyclonedx-cli, `cyclonedx validate`.

import { readFile } from 'node:fs/promises';
import { expect, test } from 'vitest';

interface Bill {
  bomFormat: string;
  specVersion: string;
  metadata: { component: Component };
  components: Component[];
  dependencies: { ref: string; dependsOn: string[] }[];
}

interface Component {
  'bom-ref': string;
  type: string;
  name: string;
  version: string;
  licenses: ({ expression: string } | { license: { id: string } })[];
  externalReferences?: { type: string; url: string }[];
}

const text = await readFile(new URL('../dist/sbom.cdx.json', import.meta.url), 'utf8');
const bill = JSON.parse(text) as Bill;

test('has the form of the template, with every value filled in', async () => {
  const template = await readFile(new URL('../sbom.template.json', import.meta.url), 'utf8');
  const pattern = template
    .trim()
    .split(/\$\{\w+\}/)
    .map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'));
  expect(text.trim()).toMatch(new RegExp(`^${pattern.join('[^"]+')}$`));
  expect(text).not.toMatch(/undefined|null|\$\{/);
});

test('has the fields that a reader of CycloneDX 1.6 looks for', () => {
  expect([bill.bomFormat, bill.specVersion]).toEqual(['CycloneDX', '1.6']);
  for (const { type, licenses, externalReferences } of [bill.metadata.component, ...bill.components]) {
    expect(type).toBe('library');
    expect(licenses).toHaveLength(1);
    for (const { type } of externalReferences ?? []) expect(type).toBe('vcs');
  }
  const { license } = bill.metadata.component.licenses[0] as { license: { id: string } };
  expect(license.id).toBe('Apache-2.0');
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
