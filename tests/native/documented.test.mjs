// Every public name has a documentation comment. `npm run docs` checks that thoroughly, with Doxygen and TypeDoc. This
// test needs no tools and little time; it relies on how clang-format and this project's TypeScript lay out
// declarations.
//
//   node --test tests/native/documented.test.mjs

import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { ROOT } from '../../native/dev/build.mjs';

const read = (...path) => readFileSync(join(ROOT, ...path), 'utf8');

/**
 * Lines that need no comment: ends of blocks, namespaces, declarations of types that are not public, destructors,
 * friends.
 */
const EXEMPT = /^(\}|public:|private:|namespace |(class|struct) \w+;|friend (class|struct)|extern template |~|MULTIHEAD_|.* = delete;)/;

/** The lines of a header that begin a declaration with no comment before or after it. */
function undocumentedInHeader(text) {
  const missing = [];
  let inType = false;
  let isPrivate = false;
  let before = '';
  text.split('\n').forEach((line, index) => {
    if (line.trim() === '' || line.includes('NOLINT')) return;
    if (/^\w/.test(line)) [inType, isPrivate] = [/^(struct|class|enum)\b/.test(line), false];
    if (line === ' private:') isPrivate = true;
    // Namespaces are not indented, so members begin at the third column; enumerators may be deeper.
    const begins = /^[\w[]/.test(line) || (inType && /^ {2}[\w[~]/.test(line)) || /^ +k[A-Z]\w*( = \d+)?,/.test(line);
    const documented = /^\s*\/\/\//.test(before) || line.includes('///<');
    const goesOn = before.startsWith(line.match(/^ */)[0] + 'template <');
    if (begins && !isPrivate && !documented && !goesOn && !EXEMPT.test(line.trim())) missing.push(`${index + 1}: ${line}`);
    before = line;
  });
  return missing;
}

/** The members of exported interfaces and classes, and the exported declarations, that have no comment. */
function undocumentedInTypes(text) {
  const missing = [];
  let inType = false;
  let before = '';
  text.split('\n').forEach((line, index) => {
    const exported = /^export (declare |abstract |async )*(interface|class|type|const|function) (?![*{])/.test(line);
    if (/^[\w}]/.test(line)) inType = /^export (interface|class)\b/.test(line) || (inType && !line.startsWith('}'));
    const isMember = inType && /^ {2}(override |readonly )*(\[Symbol[\w.]+\]|[a-zA-Z]\w*\??)[<(:]/.test(line);
    const isInner = /^ {4,}readonly \w+\??:/.test(line) || /[{;] readonly \w+\??:/.test(line); // a member of a nested type
    // If a comma or a parenthesis ends the line before, this line continues a declaration.
    if ((exported || isMember || isInner) && !/(\*\/|[,(<])$/.test(before)) missing.push(`${index + 1}: ${line}`);
    if (line.trim() !== '') before = line;
  });
  return missing;
}

test('of the C++ headers', () => {
  for (const name of readdirSync(join(ROOT, 'src', 'multihead'))) {
    assert.deepEqual(undocumentedInHeader(read('src', 'multihead', name)), [], name);
  }
});

test('of the package', () => {
  const names = readdirSync(join(ROOT, 'bindings', 'src', 'types')).filter((name) => !['platform.ts', 'wire.ts'].includes(name));
  assert.ok(names.length > 12, `${names.length} files`);
  for (const name of [...names.map((each) => join('types', each)), join('runtime', 'errors.ts')]) {
    assert.deepEqual(undocumentedInTypes(read('bindings', 'src', name)), [], name);
  }
});
