// Writes the TypeScript that the core decides, out of the tables that its C++ is made of:
//   src/tables.ts   names, axes and messages of errors, out of src/engine/messages.inc, and the
//                   enumerations of wire.inc
//   src/wire.ts     how calls are written and results read, out of wire.inc

import { createHash } from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const at = (path) => fileURLToPath(new URL(path, import.meta.url));
const read = (path) => readFileSync(at(path), 'utf8');

const wire = read('wire.inc');
const messages = read('../src/engine/messages.inc');
const blocks = blocksOf(wire);

writeIfChanged('src/tables.ts', [tablesOf(messages), ...enumerations(), ...constants()].join('\n'));
writeIfChanged('src/wire.ts', wireOf());

/** An unchanged file is left alone: a test builds while others read it. */
function writeIfChanged(path, text) {
  if (!existsSync(at(path)) || read(path) !== text) writeFileSync(at(path), text);
}

/** The version of the wire: a hash of the hashes of these files, as in CMakeLists.txt. */
function versionOfWire() {
  const files = ['wire.inc', 'arguments.h', 'results.h', '../src/engine/messages.inc'];
  const sha256 = (text) => createHash('sha256').update(text).digest('hex');
  return sha256(files.map((file) => sha256(read(file))).join('')).slice(0, 8);
}

/** The tables of errors. */
function tablesOf(source) {
  /** What messages.ts fills in. */
  const values = ['0', '1', '2', '3', 'axes', 'divisors', 'dtype0', 'dtype1', 'given', 'real', 'shape', 'text'];

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

  return [
    '// Made by tables.mjs out of src/engine/messages.inc and wire.inc, in their order: the core gives places in these lists.\n',
    '/** Of arguments, options and functions. */',
    list('names', 'string', names.map(([, name]) => name)),
    list('axes', 'string', rowsOf('MULTIHEAD_AXES').map(([text]) => inJavaScript(text))),
    '/** Templates of what was expected and of what came. */',
    list('messages', '(readonly [string, string])', rowsOf('MULTIHEAD_MESSAGE').map((row) => row.map(inJavaScript))),
  ].join('\n');
}

/** Of all macros of wire.inc with this name, what `write` makes. */
function each(macro, write) {
  return blocks.filter((block) => block.macro === macro).map(write);
}

function isFunction(macro) {
  return macro === 'WIRE_FUNCTION' || macro === 'WIRE_CORE_FUNCTION';
}

/** The name in TypeScript of an enumeration or a record of C++. */
function nameOf(type) {
  return type.replaceAll('::', '');
}

function enumerations() {
  return each('WIRE_ENUM', ({ args: [type, name], rows }) =>
    [
      `/** multihead::${type} */`,
      `export const ${name} = {`,
      ...rows.map(([, value], code) => `  ${value}: ${code},`),
      '} as const;',
      `export type ${nameOf(type)} = (typeof ${name})[keyof typeof ${name}];\n`,
    ].join('\n'),
  );
}

function constants() {
  return [
    ...each('WIRE_CONSTANT', ({ args: [, name, value] }) => `export const ${name} = ${value};\n`),
    '/** load() refuses a module of another version. */',
    `export const wireVersion = '${versionOfWire()}';\n`,
  ];
}

/** src/wire.ts */
function wireOf() {
  /** For a C++ type that is written: its TypeScript type, and a method of Arguments. */
  const argumentTypes = {
    float: ['number', 'number'],
    double: ['number', 'number'],
    int64_t: ['number', 'number'],
    uint32_t: ['number', 'number'],
    uint64_t: ['Whole64', 'whole64'],
    bool: ['boolean', 'flag'],
    'std::optional<float>': ['number | undefined', 'optional'],
    'std::span<float>': ["Span<'f32'>", 'span'],
    'std::span<const float>': ["Span<'f32'>", 'span'],
    'std::span<const int32_t>': ["Span<'i32'>", 'span'],
    'std::span<const char>': ["Span<'text'>", 'span'],
    AnyTensor: ['Operand | undefined', 'tensor'],
    ConstAnyTensor: ['Operand | undefined', 'tensor'],
    Tensor: ["Operand<'f32'> | undefined", 'tensor'],
    ConstTensor: ["Operand<'f32'> | undefined", 'tensor'],
    'TensorView<uint8_t>': ["Operand<'bool'> | undefined", 'tensor'],
    ConstBoolTensor: ["Operand<'bool'> | undefined", 'tensor'],
  };
  /** For a C++ type that is read: its TypeScript type, and a method of Results. */
  const resultTypes = {
    float: ['number', 'number'],
    double: ['number', 'number'],
    int64_t: ['number', 'number'],
    'const void*': ['number', 'number'],
    'engine::Message': ['number', 'number'],
    'engine::Name': ['number', 'number'],
    'engine::Axes': ['number', 'number'],
    bool: ['boolean', 'flag'],
    'std::string': ['string', 'text'],
    Dims: ['number[]', 'wholes'],
    'std::vector<int64_t>': ['number[]', 'wholes'],
    'std::vector<double>': ['Float64Array', 'doubles'],
    'std::vector<int32_t>': ['Int32Array', 'integers'],
    'std::span<const std::string_view>': ['string[]', 'texts'],
  };
  const enums = each('WIRE_ENUM', ({ args: [type] }) => type);
  const written = [];
  const used = new Set();

  /** The TypeScript type of a field, and the statement that writes `value`. */
  function field(type, value, where) {
    if (written.includes(type)) return [`Readonly<${nameOf(type)}>`, `write${nameOf(type)}(to, ${value});`];
    if (enums.includes(type)) {
      used.add(nameOf(type));
      return [nameOf(type), `to.number(${value});`];
    }
    const [javascript, method] = known(argumentTypes, type, where);
    return [javascript, `to.${method}(${value});`];
  }
  function known(types, type, where) {
    if (Object.hasOwn(types, type)) return types[type];
    throw new Error(`wire.inc: ${where}: ${type} is no type that tables.mjs knows, nor a record that stands above`);
  }

  const records = each('WIRE_RECORD', ({ args: [type], rows }) => {
    const name = nameOf(type);
    const fields = rows.map(([kind, , key]) => [key, ...field(kind, `from.${key}`, type)]);
    written.push(type);
    return [
      `/** multihead::${type} */`,
      `export interface ${name} {`,
      ...fields.map(([key, javascript]) => `  ${key}: ${javascript};`),
      '}\n',
      `function write${name}(to: Arguments, from: Readonly<${name}>): void {`,
      ...fields.map(([, , statement]) => `  ${statement}`),
      '}\n',
    ].join('\n');
  });

  const calls = each('WIRE_CALL', ({ args: [type, name], rows }) => {
    const parameters = rows.map(([kind, , key]) => [key, ...field(kind, key, type)]);
    return [
      `/** multihead::bindings::${type} */`,
      `export function ${name}(`,
      '  to: Arguments,',
      ...parameters.map(([key, javascript]) => `  ${key}: ${javascript},`),
      '): void {',
      '  to.begin();',
      ...parameters.map(([, , statement]) => `  ${statement}`),
      '}\n',
    ].join('\n');
  });

  const results = each('WIRE_RESULT', ({ args: [type, name], rows }) => {
    const fields = rows.map(([kind, , key]) => [key, ...known(resultTypes, kind, type)]);
    return [
      `/** multihead::${type} */`,
      `export interface ${name} {`,
      ...fields.map(([key, javascript]) => `  readonly ${key}: ${javascript};`),
      '}\n',
      `export function read${name}(from: Results): ${name} {`,
      '  return {',
      ...fields.map(([key, , method]) => `    ${key}: from.${method}(),`),
      '  };',
      '}\n',
    ].join('\n');
  });

  const functions = blocks.filter(({ macro }) => isFunction(macro)).map(({ args: [name, , signature] }) => {
    const [, result, parameters] = /^(\w+)\((.*)\)$/.exec(signature) ?? [];
    if (result === undefined) throw new Error(`wire.inc: ${name}: "${signature}" is no signature`);
    const given = parameters.replaceAll(/(?:u?int32_t|double) (\w+)/g, '$1: number').replaceAll(/bool (\w+)/g, '$1: boolean');
    return `  ${name}(${given}): ${result === 'void' ? 'void' : 'number'};\n`;
  });

  return [
    '// Made by tables.mjs out of wire.inc, which explains it.\n',
    "import type { Arguments, Operand, Results, Span, Whole64 } from './arguments.js';",
    `import type { ${[...used].sort().join(', ')} } from './tables.js';\n`,
    ...records,
    ...calls,
    ...results,
    `export interface WireFunctions {\n${functions.join('')}}\n`,
  ].join('\n');
}

/**
 * The macros of wire.inc in their order, each with its arguments; those between one and its
 * WIRE_END_ are its rows. Throws for a line that is none of this.
 */
function blocksOf(source) {
  const body = source.slice(source.lastIndexOf('#endif') + '#endif'.length, source.indexOf('#undef'));
  const found = [];
  let open;
  for (const line of body.split('\n')) {
    const code = line.replace(/\/\/.*/, '').trim();
    if (code === '') continue;
    const [, macro, given] = /^(WIRE_\w+)(?:\((.*)\))?$/.exec(code) ?? [];
    const args = given === undefined ? [] : splitArguments(given);
    const single = macro === 'WIRE_CONSTANT' || isFunction(macro);
    if (macro?.startsWith('WIRE_END_') && open !== undefined) open = undefined;
    else if (['WIRE_VALUE', 'WIRE_FIELD', 'WIRE_ARGUMENT', 'WIRE_RESULT_FIELD'].includes(macro) && open !== undefined) open.rows.push(args);
    else if (['WIRE_ENUM', 'WIRE_RECORD', 'WIRE_CALL', 'WIRE_RESULT'].includes(macro) || single) {
      const block = { macro, args, rows: [] };
      found.push(block);
      if (!single) open = block;
    } else throw new Error(`wire.inc: cannot read "${line}"`);
  }
  return found;
}

/** At the commas outside of parentheses. */
function splitArguments(given) {
  return given.split(/,(?![^(]*\))/).map((each) => each.trim());
}
