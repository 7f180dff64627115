// Writes src/tables.ts: the names, axes and messages of the core's errors, out of the table that its C++ is made of.

import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const at = (path) => fileURLToPath(new URL(path, import.meta.url));

/** What messages.ts fills in. */
const values = ['0', '1', '2', '3', 'axes', 'divisors', 'dtype0', 'dtype1', 'given', 'real', 'shape', 'text'];

const source = readFileSync(at('../src/engine/messages.inc'), 'utf8');

/** The arguments of every call of a macro: a name, and texts behind it. */
function rowsOf(macro) {
  const rows = [];
  for (const [, given] of source.matchAll(new RegExp(`^${macro}\\(((?:[^"()]|"[^"]*")*)\\)`, 'gm'))) {
    rows.push([...given.matchAll(/"([^"]*)"/g)].map(([, text]) => text));
  }
  const calls = source.match(new RegExp(`^${macro}\\(`, 'gm'))?.length;
  if (rows.length !== calls) throw new Error(`messages.inc: ${calls} of ${macro}, of which ${rows.length} can be read`);
  return rows;
}

const names = rowsOf('MULTIHEAD_NAME');
const spelled = new Map(names);

/** A template, with the names of the interface as JavaScript spells them. */
const inJavaScript = (text) =>
  text.replace(/\{([^}]*)\}/g, (braces, key) => {
    if (values.includes(key)) return braces;
    if (!spelled.has(key)) throw new Error(`messages.inc: "${text}": ${braces} is neither a value nor a MULTIHEAD_NAME`);
    return spelled.get(key);
  });

const list = (name, type, rows) =>
  `export const ${name}: readonly ${type}[] = [\n${rows.map((row) => `  ${JSON.stringify(row)},\n`).join('')}];\n`;

writeFileSync(
  at('src/tables.ts'),
  [
    '// Made by tables.mjs out of src/engine/messages.inc. In its order, which the numbers of the core refer to.\n',
    '/** Of arguments, options and functions. */',
    list('names', 'string', names.map(([, name]) => name)),
    list('axes', 'string', rowsOf('MULTIHEAD_AXES').map(([text]) => inJavaScript(text))),
    '/** Templates of what was expected and of what came. */',
    list('messages', '(readonly [string, string])', rowsOf('MULTIHEAD_MESSAGE').map((row) => row.map(inJavaScript))),
  ].join('\n'),
);
