// Generates TypeScript from the tables of the C++ core:
//
//     src/generated/tables.ts          names, axes and messages of errors, from src/engine/error/messages.inc, and the
//                                      enumerations of wire.inc
//     src/generated/trainer_tables.ts  the names, axes and messages that multihead/core does not need, but multihead/models
//     src/generated/module_tables.ts   those that neither of them needs
//     src/generated/trace_names.ts     steps of traces, from src/nn/attention/tracer.cc
//     src/generated/file_kinds.ts      files in place of safetensors files, from src/nn/io/file_kinds.inc
//     src/generated/stored_types.ts    types of tensors in GGUF files, from src/models/stored_types.inc
//     src/generated/folder_files.ts    the rules of a model's folder, from src/models/io/folder_files.inc
//     src/generated/kernels.ts         kernels of a browser's GPU, from src/webgpu
//     src/generated/wire.ts            functions that write calls and read results, from wire.inc
//     src/generated/gpu_wire.ts        those that only mh.gpu() needs
//     src/generated/part*.ts           names and files of the parts of multihead/models, from parts.json

import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const at = (path) => fileURLToPath(new URL(path, import.meta.url));
const read = (path) => readFileSync(at(path), 'utf8');

const wire = read('wire.inc');
const messages = read('../src/engine/error/messages.inc');
const blocks = blocksOf(wire);

const [coreTables, trainerTables, moduleTables] = tablesOf(messages);
writeIfChanged('src/generated/tables.ts', [coreTables, ...enumerations(), ...constants()].join('\n'));
writeIfChanged('src/generated/trainer_tables.ts', trainerTables);
writeIfChanged('src/generated/module_tables.ts', moduleTables);
const [wireText, gpuWireText] = wireOf();
writeIfChanged('src/generated/wire.ts', wireText);
writeIfChanged('src/generated/gpu_wire.ts', gpuWireText);
writeIfChanged('src/generated/kernels.ts', kernelsOf(read('../src/webgpu/kernels.inc'), read('../src/webgpu/params.inc')));
writeIfChanged('src/generated/trace_names.ts', traceNamesOf(read('../src/nn/attention/tracer.cc')));
writeIfChanged('src/generated/file_kinds.ts', fileKindsOf(read('../src/nn/io/file_kinds.inc')));
writeIfChanged('src/generated/stored_types.ts', storedTypesOf(read('../src/models/stored_types.inc')));
writeIfChanged('src/generated/folder_files.ts', folderFilesOf(read('../src/models/io/folder_files.inc')));

const parts = JSON.parse(read('parts.json'));
/** Names of the parts of multihead/models. */
export const partNames = Object.keys(parts);
writePartFiles();

/** Bundlers find files by literal addresses, so each entry point has them in its own form. */
function writePartFiles() {
  const file = (part, simd) => `'./multihead-${part}-${simd}.wasm'`;
  const table = (name, valueOf) => [`export const ${name} = {`, ...partNames.map((part) => `  ${part}: ${valueOf(part)},`), '};'];
  const both = (valueOf) => (part) => `{ relaxed: ${valueOf(part, 'relaxed')}, simd128: ${valueOf(part, 'simd128')} }`;
  const needs = partNames.flatMap((part) => (parts[part].needs === undefined ? [] : [`${part}: '${parts[part].needs}'`]));
  const files = {
    parts: [
      `export const partNames = ['${partNames.join("', '")}'] as const;`,
      'export type PartName = (typeof partNames)[number];',
      '/** The part that another one calls. */',
      `export const partNeeds: { readonly [part in PartName]?: PartName } = { ${needs.join(', ')} };`,
    ],
    part_urls: table(
      'partUrls',
      both((part, simd) => `() => new URL(${file(part, simd)}, import.meta.url)`),
    ),
    part_texts: table('partTexts', (part) => `() => import('built:${part}-inline-wasm')`),
    part_modules: [
      ...partNames.flatMap((part) => ['relaxed', 'simd128'].map((simd) => `import ${part}_${simd} from ${file(part, simd)};`)),
      ...table(
        'partModules',
        both((part, simd) => `${part}_${simd}`),
      ),
    ],
  };
  for (const [name, lines] of Object.entries(files))
    writeIfChanged(`src/generated/${name}.ts`, ['// Made by tables.mjs out of parts.json.\n', ...lines, ''].join('\n'));
}

/** The arguments of every use of a macro. Texts are those of C++ with escapes such as \x03 alone. */
function rowsOfTable(source, macro) {
  const inJson = (text) => text.replace(/\\x(..)/g, '\\u00$1');
  return [...source.matchAll(new RegExp(`^${macro}\\((.*)\\)$`, 'gm'))].map(([, row]) =>
    [...row.matchAll(/"(?:[^"\\]|\\.)*"|[^\s,"]+/g)].map(([part]) => (part.startsWith('"') ? JSON.parse(inJson(part)) : part)),
  );
}

function pairsOf(comment, name, rows) {
  return [`/** ${comment} */`, `export const ${name} = ${JSON.stringify(rows, null, 2)} as const;\n`];
}

function traceNamesOf(source) {
  const names = /kNames\[\] = \{([^}]*)\}/.exec(source)[1].match(/\w+/g);
  const inJavaScript = names.map((name) => (name === 'per_head_output' ? 'headShares' : memberInJavaScript(name)));
  return ['// Made by tables.mjs out of src/nn/attention/tracer.cc.\n', ...pairsOf('In the order of the core.', 'traceNames', inJavaScript)].join(
    '\n',
  );
}

function fileKindsOf(source) {
  const made = '// Made by tables.mjs out of src/nn/io/file_kinds.inc.\n';
  return [made, ...pairsOf('How a file begins, and what it is.', 'fileKinds', rowsOfTable(source, 'FILE_KIND'))].join('\n');
}

function storedTypesOf(source) {
  const rows = (macro) => rowsOfTable(source, macro).map((row) => row.map((part) => (/^\d+$/.test(part) ? Number(part) : part)));
  return [
    '// Made by tables.mjs out of src/models/stored_types.inc.\n',
    ...pairsOf('Types that are read: number, name, numbers and bytes of a block.', 'storedTypes', rows('STORED_TYPE')),
    ...pairsOf('Types that errors name.', 'otherTypes', rows('OTHER_TYPE')),
  ].join('\n');
}

function folderFilesOf(source) {
  return [
    '// Made by tables.mjs out of src/models/io/folder_files.inc, which explains it.\n',
    ...pairsOf('Optional files, and the member that is used, or "".', 'settingsFiles', rowsOfTable(source, 'SETTINGS_FILE')),
    ...pairsOf('A name or its end, and what a folder with such a file is.', 'folderSigns', rowsOfTable(source, 'FOLDER_SIGN')),
    ...rowsOfTable(source, 'FOLDER_LIMIT').map(([, name, value]) => `export const ${name} = ${value};\n`),
  ].join('\n');
}

/** The texts of kernels, with what they include and their uniform blocks, without comments: see src/webgpu/plan.h. */
function kernelsOf(list, params) {
  const withoutComments = params.replace(/\/\/.*/g, '');
  const sizes = [...withoutComments.matchAll(/^MULTIHEAD_GPU_SIZE\((\w+), (\d+)\)/gm)].map(([, name, value]) => `const ${name} = ${value}u;\n`);
  const blocks = new Map(
    [...withoutComments.matchAll(/^MULTIHEAD_GPU_BLOCK\((\w+),((?:\s*FIELD\(\w+, \w+\))*)\)/gm)].map(([, name, fields]) => [
      name,
      `${sizes.join('')}struct Params {${fields.replace(/\s*FIELD\((\w+), (\w+)\)/g, ' $2: $1,')} }\n@group(0) @binding(0) var<uniform> p: Params;`,
    ]),
  );
  const textOf = (file, values = {}) =>
    read(`../src/webgpu/kernels/${file}`)
      .replace(/\$(\w+?)(?=_at\b|\b)/g, (_, name) => values[name])
      .replace(/^\/\/#include (\S+)(.*)$/gm, (_, included, given) =>
        textOf(
          included,
          Object.fromEntries(
            given
              .trim()
              .split(' ')
              .map((each) => each.split('=')),
          ),
        ),
      )
      .replace(/^\/\/#params (\w+)$/gm, (_, name) => blocks.get(name))
      .replace(/^\/\/#rows$([^]*?)^\/\/#done$/gm, (_, lines) => {
        const [first, second, third, fourth] = [0, 1, 2, 3].map((r) => `{${lines.replace(/\br\b/g, `${r}u`)}}\n`);
        return `${first}${second}//#if WIDTH == 256\n//#else\n${third}${fourth}//#end`;
      });
  // Without comments, and without spaces that separate no words; `- -x` keeps its space.
  const tight = (line) =>
    /^(\/\/#|enable )/.test(line) ? line : line.replace(/ *([{}()[\];,:=<>+*/%&|^!?@]) */g, '$1').replace(/(?<!-) - (?!-)/g, '-');
  const linesOf = (text) =>
    text
      .split('\n')
      .map((line) => tight(line.replace(/\/\/(?!#).*/, '').trim()))
      .filter((line) => line !== '');
  const kernels = rowsOfTable(list, 'MULTIHEAD_GPU_KERNEL').map(([, name]) => {
    const text = textOf(`${name}.wgsl`);
    const constants = /^\/\/ constants: (.*)/.exec(text)?.[1].split(' ') ?? [];
    const isUsed = (line) => !/^const \w+=\d+u;$/.test(line) || text.split(new RegExp(`\\b${line.slice(6).split('=')[0]}\\b`)).length > 2;
    return { name, constants, text: linesOf(text).filter(isUsed).join('\n') };
  });
  return [
    '// Made by tables.mjs out of src/webgpu.\n',
    ...pairsOf("Kernels in the order of kernels.inc, with their constants' names.", 'kernels', kernels),
  ].join('\n');
}

/** Writes a file only if it changes, because a test runs the build while others read the file. */
function writeIfChanged(path, text) {
  mkdirSync(at('src/generated'), { recursive: true });
  if (!existsSync(at(path)) || read(path) !== text) writeFileSync(at(path), text);
}

/** Version of the wire format: a hash of the hashes of these files, computed as in CMakeLists.txt. */
function versionOfWire() {
  const ofGpu = ['../src/webgpu/params.inc', '../src/webgpu/kernels.inc'];
  const files = ['wire.inc', 'arguments.h', 'results.h', '../src/engine/error/messages.inc', ...ofGpu];
  const sha256 = (text) => createHash('sha256').update(text).digest('hex');
  return sha256(files.map((file) => sha256(read(file))).join('')).slice(0, 8);
}

/** Names, axes and messages in the sources of multihead/core and multihead/models without the kernels, which report no errors. */
function usedInCore() {
  const below = (folder) => readdirSync(at(folder), { recursive: true }).map((name) => `${folder}/${name}`);
  const sources = [...below('../src/engine'), ...below('../src/models')].filter((name) => /\.(cc|h)$/.test(name));
  return usedIn(['attention.cc', 'planned.cc', 'models.cc', 'call.cc', 'call.h', '../src/nn/call_memory.h', ...sources]);
}

function usedIn(files) {
  return new Set(
    files
      .map(read)
      .join('')
      .match(/\b(?:Name|Axes|Message)::k\w+/g),
  );
}

/** Makes the error tables: one of the messages that multihead/core and multihead/models report, one of the messages of trainers, and one of all others. */
function tablesOf(source) {
  /** Values that messages.ts fills in. */
  const values = ['0', '1', '2', '3', 'axes', 'divisors', 'dtype0', 'dtype1', 'given', 'name0', 'real', 'shape', 'text'];
  const inCore = usedInCore();
  const inTrainers = usedIn(['trainer', 'options', 'state_dict'].map((name) => `../src/nn/training/${name}.cc`).concat('../src/nn/parameters.cc'));

  /** Returns the strings among the arguments of a macro; C++ joins adjacent ones. */
  const textsOf = (given) => [...given.matchAll(/"[^"]*"(?:\s*"[^"]*")*/g)].map(([literals]) => literals.replace(/"\s*"|^"|"$/g, ''));

  /** Returns the arguments of every use of a macro for enumerators of this type: a name, and the texts after it. */
  function rowsOf(macro, type) {
    const rows = [];
    for (const [, given] of source.matchAll(new RegExp(`^${macro}\\(((?:[^"()]|"[^"]*")*)\\)`, 'gm'))) {
      const enumerator = `${type}::${given.split(',', 1)[0].trim()}`;
      rows.push({ part: inCore.has(enumerator) ? 'core' : inTrainers.has(enumerator) ? 'trainer' : 'module', texts: textsOf(given) });
    }
    const calls = source.match(new RegExp(`^${macro}\\(`, 'gm'))?.length;
    if (rows.length !== calls) throw new Error(`messages.inc: ${calls} of ${macro}, of which ${rows.length} can be read`);
    return rows;
  }

  const names = rowsOf('MULTIHEAD_NAME', 'Name');
  const spelled = new Map(names.map(({ texts }) => texts));

  /** Spells the names of the interface in a message template as JavaScript does. */
  const inJavaScript = (text) =>
    text.replace(/\{([^}]*)\}/g, (braces, key) => {
      if (values.includes(key)) return braces;
      if (!spelled.has(key)) throw new Error(`messages.inc: "${text}": ${braces} is neither a value nor a MULTIHEAD_NAME`);
      return spelled.get(key);
    });

  const tables = {
    names: names.map(({ part, texts: [, name] }) => [part, name]),
    axes: rowsOf('MULTIHEAD_AXES', 'Axes').map(({ part, texts: [text] }) => [part, inJavaScript(text)]),
    messages: rowsOf('MULTIHEAD_MESSAGE', 'Message').map(({ part, texts }) => [part, [...texts, ''].slice(0, 3).map(inJavaScript)]),
  };
  /** Writes each list as one string, which is smaller; rows of other parts are empty. */
  const written = (part) => [
    `export const ${part}Tables: ErrorTables = {`,
    ...Object.entries(tables).map(([key, rows]) => {
      const texts = rows.flatMap(([own, row]) => [row].flat().map((text) => (own === part ? text : '')));
      if (texts.some((text) => text.includes('|'))) throw new Error(`messages.inc: a text of ${key} has a |, which separates them`);
      return `  ${key}: /* @__PURE__ */ ${JSON.stringify(texts.join('|'))}.split('|'),`;
    }),
    '};\n',
  ];

  const made = '// Made by tables.mjs out of src/engine/error/messages.inc';
  const core = [
    `${made} and wire.inc, in their order: the core gives places in these lists.\n`,
    '/** The texts of errors; those of other parts are empty. */',
    'export interface ErrorTables {',
    '  /** Of arguments, options and functions. */',
    '  readonly names: readonly string[];',
    '  readonly axes: readonly string[];',
    '  /** Three templates for each message: what was expected, what came, and the sentence or an empty text. */',
    '  readonly messages: readonly string[];',
    '}\n',
    '/** What multihead/core and multihead/models can report. */',
    ...written('core'),
  ];
  const others = ['trainer', 'module'].map((part) => [
    `${made}.`,
    "import type { ErrorTables } from './tables.js';\n",
    `/** What multihead/core does not report, but ${part}s do. */`,
    ...written(part),
  ]);
  return [core, ...others].map((lines) => lines.join('\n'));
}

/** Applies `write` to all macros of wire.inc with this name. */
function each(macro, write) {
  return blocks.filter((block) => block.macro === macro).map(write);
}

function isFunction(macro) {
  return /^WIRE_(CORE_|BASE_|PLANNED_|GPU_|MODELS_|SHARED_)?FUNCTION$/.test(macro);
}

/** Returns the TypeScript name of a C++ enumeration or record. */
function nameOf(type) {
  return type.replaceAll('::', '');
}

function enumerations() {
  return each('WIRE_ENUM', ({ args: [type, name, ...values] }) =>
    [
      `/** multihead::${type} */`,
      `export const ${name} = {`,
      ...values.map((value, code) => `  ${valueInJavaScript(value)}: ${code},`),
      '} as const;',
      `export type ${nameOf(type)} = (typeof ${name})[keyof typeof ${name}];\n`,
    ].join('\n'),
  );
}

function constants() {
  return [
    ...each('WIRE_CONSTANT', ({ args: [, name, value] }) => `export const ${name} = ${value};\n`),
    '/** The version of the package. */',
    `export const version = '${JSON.parse(read('package.json')).version}';\n`,
    '/** load() refuses a module of another version. */',
    `export const wireVersion = '${versionOfWire()}';\n`,
  ];
}

/** src/generated/wire.ts, and src/generated/gpu_wire.ts with the calls whose names begin with Gpu. */
function wireOf() {
  const ofEach = (types, entry) => Object.fromEntries(types.map((type) => [type, entry]));
  /** The TypeScript type, and the method of WireWriter, for each C++ type that is written. */
  const argumentTypes = {
    ...ofEach(['float', 'double'], ['number', 'number']),
    int32_t: ['Int32', 'number'],
    int64_t: ['Int64', 'number'],
    uint32_t: ['Uint32', 'number'],
    uint64_t: ['Whole64', 'whole64'],
    bool: ['boolean', 'flag'],
    'std::optional<float>': ['number | undefined', 'optional'],
    'std::span<float>': ["Span<'f32'>", 'span'],
    'std::span<const float>': ["Span<'f32'>", 'span'],
    'std::span<const int32_t>': ["Span<'i32'>", 'span'],
    'std::span<const char>': ["Span<'text'>", 'span'],
    'std::span<const double>': ["Span<'f64'>", 'span'],
    'std::span<const uint8_t>': ["Span<'bool'>", 'span'],
    ...ofEach(['AnyTensor', 'ConstAnyTensor'], ['Operand | undefined', 'tensor']),
    ...ofEach(['Tensor', 'ConstTensor'], ["Operand<'f32'> | undefined", 'tensor']),
    ...ofEach(['TensorView<uint8_t>', 'ConstBoolTensor'], ["Operand<'bool'> | undefined", 'tensor']),
  };
  /** The TypeScript type, and the method of WireReader, for each C++ type that is read. */
  const resultTypes = {
    ...ofEach(['float', 'double', 'int64_t', 'const void*'], ['number', 'number']),
    ...ofEach(['engine::Message', 'engine::Name', 'engine::Axes', 'ModelOutput', 'EarlyStopping', 'Pooling'], ['number', 'number']),
    bool: ['boolean', 'flag'],
    'std::string': ['string', 'text'],
    ...ofEach(['Dims', 'std::vector<int64_t>'], ['number[]', 'wholes']),
    'std::vector<double>': ['Float64Array', 'doubles'],
    'std::vector<float>': ['Float32Array<ArrayBuffer>', 'floats'],
    'std::vector<int32_t>': ['Int32Array', 'integers'],
    'std::span<const std::string_view>': ['string[]', 'texts'],
  };
  /** The TypeScript type for each C++ type of a function's parameter or result. */
  const parameterTypes = { int32_t: 'Int32', uint32_t: 'Uint32', double: 'number', bool: 'boolean' };
  const enums = each('WIRE_ENUM', ({ args: [type] }) => type);
  const written = [];
  const used = new Set();

  /** Returns the TypeScript type of a field, and the statement that writes `value`. */
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
      `export function write${name}(to: WireWriter, from: Readonly<${name}>): void {`,
      ...fields.map(([, , statement]) => `  ${statement}`),
      '}\n',
    ].join('\n');
  });

  const calls = each('WIRE_CALL', ({ args: [type, name], rows }) => {
    const parameters = rows.map(([kind, , key]) => [key, ...field(kind, key, type)]);
    return [
      `/** multihead::bindings::${type} */`,
      `export function ${name}(`,
      '  to: WireWriter,',
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
      `export function read${name}(from: WireReader): ${name} {`,
      '  return {',
      ...fields.map(([key, , method]) => `    ${key}: from.${method}(),`),
      '  };',
      '}\n',
    ].join('\n');
  });

  const functions = blocks
    .filter(({ macro }) => isFunction(macro))
    .map(({ args: [name, , signature] }) => {
      const [, result, parameters] = /^(\w+)\((.*)\)$/.exec(signature ?? '') ?? [];
      if (result === undefined) throw new Error(`wire.inc: ${name}: "${signature}" is no signature`);
      const given = parameters === '' ? [] : parameters.split(',').map((each) => each.trim());
      const typed = given.map((each) => {
        const [, type, parameter] = /^(\w+) (\w+)$/.exec(each) ?? [];
        return `${parameter}: ${known(parameterTypes, type, name)}`;
      });
      return `  ${name}(${typed.join(', ')}): ${result === 'void' ? 'void' : known(parameterTypes, result, name)};\n`;
    });

  const ofGpu = (text) => /^export (interface|function) (read)?gpu/im.test(text);
  const parts = [...records, ...calls, ...results];
  const gpuParts = parts.filter(ofGpu);
  const called = gpuParts.join('');
  const typesIn = ['Int32', 'Int64', 'Operand', 'Span', 'Uint32', 'Whole64', 'WireReader', 'WireWriter'];
  const writers = records.filter((text) => !ofGpu(text)).map((text) => /interface (\w+)/.exec(text)[1]);
  const writersIn = writers.filter((name) => called.includes(`write${name}(`)).flatMap((name) => [`type ${name}`, `write${name}`]);
  const made = '// Made by tables.mjs out of wire.inc, which explains it.\n';
  return [
    [
      made,
      `import type { ${typesIn.join(', ')} } from '../types/wire.js';`,
      `import type { ${[...used].sort().join(', ')} } from './tables.js';\n`,
      ...parts.filter((text) => !ofGpu(text)),
      `export interface WireFunctions {\n${functions.join('')}}\n`,
    ].join('\n'),
    [
      made,
      `import type { ${typesIn.filter((name) => new RegExp(`\\b${name}\\b`).test(called)).join(', ')} } from '../types/wire.js';`,
      `import { ${writersIn.join(', ')} } from './wire.js';\n`,
      ...gpuParts,
    ].join('\n'),
  ];
}

/**
 * Parses the macros of wire.inc in their order, each with its arguments. The arguments that are macros themselves are its
 * rows: a type, a C++ member, and its name in JavaScript. Throws for anything else.
 */
function blocksOf(source) {
  const body = source.slice(source.lastIndexOf('#endif') + '#endif'.length, source.indexOf('#undef')).replace(/\/\/.*/g, '');
  const macros = ['WIRE_CONSTANT', 'WIRE_ENUM', 'WIRE_RECORD', 'WIRE_CALL', 'WIRE_RESULT'];
  const found = [];
  const rest = body.replace(/\b(WIRE_\w+)\(((?:[^()]|\([^()]*\))*)\)/g, (text, macro, given) => {
    if (!macros.includes(macro) && !isFunction(macro)) return text;
    const rows = [];
    const others = given.replace(/\b(WIRE_FIELD(?:_AS)?)\(([^()]*)\)/g, (_, kind, field) => {
      const [type, ...members] = splitArguments(field);
      if (kind === 'WIRE_FIELD_AS') rows.push([type, ...members]);
      else rows.push(...members.map((member) => [type, member, memberInJavaScript(member)]));
      return '';
    });
    found.push({ macro, args: splitArguments(others).filter((each) => each !== ''), rows });
    return '';
  });
  if (rest.trim() !== '') throw new Error(`wire.inc: cannot read "${rest.trim().split('\n')[0]}"`);
  return found;
}

/** window.left, or window_left: windowLeft. */
function memberInJavaScript(member) {
  return member.replace(/[._](\w)/g, (_, letter) => letter.toUpperCase());
}

/** kTopLeft: topLeft. kF32: f32. */
function valueInJavaScript(value) {
  const name = value.slice(1);
  return /^[A-Z0-9]+$/.test(name) ? name.toLowerCase() : name[0].toLowerCase() + name.slice(1);
}

/** Splits at the commas outside parentheses. */
function splitArguments(given) {
  return given.split(/,(?![^(]*\))/).map((each) => each.trim());
}
