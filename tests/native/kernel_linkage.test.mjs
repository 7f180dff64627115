// The kernels are compiled with flags by file (src/CMakeLists.txt), so a function of a shared header must be a function
// of each file: otherwise the linker would keep one copy of a template, with the flags of whichever object comes first.
// The namespace MULTIHEAD_FILE (cpu/simd/file_namespace.h) does this.
//
//   node --test tests/native/kernel_linkage.test.mjs

import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const kernels = fileURLToPath(new URL('../../src/cpu', import.meta.url));
const files = readdirSync(kernels, { recursive: true }).filter((name) => /\.(cc|h)$/.test(name));
const OPEN = 'namespace multihead::cpu::HWY_NAMESPACE {';
const CLOSE = '}  // namespace multihead::cpu::HWY_NAMESPACE';

const OWN = /^inline namespace MULTIHEAD_FILE \{$[^]*?^\}  \/\/ namespace MULTIHEAD_FILE$/gm;

/** Returns the code of a SIMD target's namespaces outside of the namespace of the file, without comments. */
function exposed(text) {
  return text
    .split(OPEN)
    .slice(1)
    .map((part) => part.slice(0, part.indexOf(CLOSE)).replace(OWN, ''))
    .join('\n')
    .replace(/\/\/.*$/gm, '');
}

test('functions of kernels and of their headers belong to one file', () => {
  const found = files.filter((name) => readFileSync(join(kernels, name), 'utf8').includes(OPEN));
  assert.ok(found.some((name) => name.endsWith('-inl.h')) && found.some((name) => name.endsWith('.cc')));
  for (const name of found) {
    const rest = exposed(readFileSync(join(kernels, name), 'utf8'));
    // A template, a function's body, or one of Highway's attributes of functions.
    const wrong = /^.*(?:\btemplate\b|\)[\w\s]*\{|\bHWY_(?:NO)?INLINE\b|\bclass\b).*$/m.exec(rest);
    assert.equal(wrong?.[0].trim(), undefined, `src/cpu/${name}: is outside of MULTIHEAD_FILE`);
  }
});
