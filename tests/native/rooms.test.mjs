// Imports between folders go one way, in C++ and in TypeScript.
//
//   node --test tests/native/rooms.test.mjs

import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { join, posix, relative } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** The files below a folder, as paths relative to it. */
function filesBelow(folder, pattern) {
  return readdirSync(join(root, folder), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && pattern.test(entry.name))
    .map((entry) => relative(join(root, folder), join(entry.parentPath ?? entry.path, entry.name)).replaceAll('\\', '/'));
}

/**
 * The imports between folders: by folder, each folder that it imports from, with one import as an example.
 * @param {string[]} files
 * @param {(file: string) => string[]} importsOf the imported files, in the form of `files`; others are left out
 */
function arrows(files, importsOf) {
  const known = new Set(files);
  const all = new Map();
  for (const file of files) {
    const from = posix.dirname(file);
    if (!all.has(from)) all.set(from, new Map());
    for (const imported of importsOf(file)) {
      const to = posix.dirname(imported);
      if (known.has(imported) && to !== from) all.get(from).set(to, `${file} imports ${imported}`);
    }
  }
  return all;
}

/** The first circle of folders: the imports that form it, or null. */
function circle(graph) {
  const done = new Set();
  const visit = (folder, path) => {
    const begin = path.findIndex(([from]) => from === folder);
    if (begin >= 0) return path.slice(begin).map(([, example]) => example);
    if (done.has(folder)) return null;
    for (const [to, example] of graph.get(folder) ?? []) {
      const found = visit(to, [...path, [folder, example]]);
      if (found) return found;
    }
    done.add(folder);
    return null;
  };
  for (const folder of graph.keys()) {
    const found = visit(folder, []);
    if (found) return found;
  }
  return null;
}

const cxx = filesBelow('src', /\.(h|cc|cu|inc)$/);
const includes = (file) => [...readFileSync(join(root, 'src', file), 'utf8').matchAll(/^#include "(.+)"/gm)].map(([, name]) => name);

function typescript(folder) {
  const files = filesBelow(folder, /\.ts$/);
  const imports = (file) =>
    [...readFileSync(join(root, folder, file), 'utf8').matchAll(/\bfrom '(\.[^']+)'|\bimport[ (]'(\.[^']+)'/g)].map(
      // A script that is imported by its address, such as './worker.ts?worker&url', counts as an import, too.
      ([, a, b]) =>
        posix
          .join(posix.dirname(file), a ?? b)
          .replace(/\?.*$/, '')
          .replace(/\.js$/, '.ts'),
    );
  return arrows(files, imports);
}

/** The floors of src/, from the lowest; a folder includes only from its own floor and from those below. */
const FLOORS = [['multihead'], ['rules'], ['cpu', 'reference'], ['engine'], ['cuda', 'nn'], ['distributed', 'models', 'lab'], ['webgpu']];

test('folders of src/ form no circle', () => {
  assert.equal(circle(arrows(cxx, includes)), null);
});

/** Fails if a folder imports from a floor above its own. */
function checkFloors(graph, floors) {
  const floorOf = (folder) => floors.findIndex((floor) => floor.includes(folder.split('/', 1)[0]));
  for (const [from, targets] of graph) {
    assert.ok(floorOf(from) >= 0, `${from} is on no floor of this test`);
    for (const [to, example] of targets) assert.ok(floorOf(to) <= floorOf(from), example);
  }
}

test('no floor of src/ includes from the floors above it', () => checkFloors(arrows(cxx, includes), FLOORS));

/** The floors of bindings/src/, from the lowest; a folder imports only from the floors below it. */
const PACKAGE_FLOORS = [
  ['types'],
  ['generated'],
  ['runtime'],
  ['attention', 'load', 'safetensors'],
  ['cache'],
  ['modules', 'gpu'],
  ['training'],
  ['api'],
  ['pool/shared'],
  ['models/core'],
  ['models/gpu', 'models/workers'],
  ['models'],
  ['command'],
  ['pool/worker'],
  ['pool'],
  ['entry'],
];

test('each folder of bindings/src/ imports only from the floors below it', () => {
  const floorOf = (folder) => PACKAGE_FLOORS.findIndex((floor) => floor.includes(folder));
  for (const [from, targets] of typescript('bindings/src')) {
    assert.ok(floorOf(from) >= 0, `bindings/src/${from} is on no floor of this test`);
    for (const [to, example] of targets) assert.ok(floorOf(to) < floorOf(from), example);
  }
});

test('folders of web/src form no circle', () => assert.equal(circle(typescript('web/src')), null));

/** The floors of web/src/, from the lowest; the scripts that the browser starts are on top, and no folder imports them. */
const PAGE_FLOORS = [
  ['base'],
  ['workers'],
  ['attention'],
  ['model', 'training', 'speed'],
  ['state'],
  ['dom'],
  ['controls', 'maps'],
  ['page', 'sections'],
  ['story'],
  ['.'],
];

test('no floor of web/src imports from the floors above it', () => checkFloors(typescript('web/src'), PAGE_FLOORS));

test('a circle of folders is found', () => {
  const text = { 'a/x.h': ['b/y.h'], 'b/y.h': ['c/z.h'], 'c/z.h': ['a/w.h'], 'a/w.h': [], 'd/v.h': ['a/x.h'] };
  const graph = arrows(Object.keys(text), (file) => text[file]);
  assert.deepEqual(circle(graph), ['a/x.h imports b/y.h', 'b/y.h imports c/z.h', 'c/z.h imports a/w.h']);
  graph.get('c').delete('a');
  assert.equal(circle(graph), null);
});
