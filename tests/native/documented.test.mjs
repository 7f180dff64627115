// Every public name has a documentation comment. `npm run docs` is thorough about that, with Doxygen and TypeDoc; this test
// needs no tools and no time, and relies on how clang-format and this project's TypeScript lay out declarations.
//
//   node --test tests/native/documented.test.mjs

import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { ROOT } from '../../native/dev/build.mjs';

const read = (...path) => readFileSync(join(ROOT, ...path), 'utf8');

/** What needs no comment: ends of blocks, namespaces, declarations of types that are not public, destructors, friends. */
const EXEMPT = /^(\}|public:|private:|namespace |(class|struct) \w+;|friend (class|struct)|~|MULTIHEAD_|.* = delete;)/;

/** The lines of a header that begin a declaration without a comment before it or behind it. */
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

/** The members of exported interfaces and classes without a comment, and exported declarations without one. */
function undocumentedInTypes(text) {
  const missing = [];
  let inType = false;
  let before = '';
  text.split('\n').forEach((line, index) => {
    const exported = /^export (declare |abstract |async )*(interface|class|type|const|function) (?![*{])/.test(line);
    if (/^[\w}]/.test(line)) inType = /^export (interface|class)\b/.test(line) || (inType && !line.startsWith('}'));
    const isMember = inType && /^ {2}(override |readonly )*(\[Symbol[\w.]+\]|[a-zA-Z]\w*\??)[<(:]/.test(line);
    const isInner = /^ {4,}readonly \w+\??:/.test(line) || /[{;] readonly \w+\??:/.test(line); // of a type inside of another
    // A comma or a parenthesis before it: the line goes on with a declaration.
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
  const names = readdirSync(join(ROOT, 'bindings', 'src')).filter((name) => /(^|_)types\.ts$/.test(name) && name !== 'platform_types.ts');
  for (const name of [...names, 'errors.ts']) {
    assert.deepEqual(undocumentedInTypes(read('bindings', 'src', name)), [], name);
  }
});
