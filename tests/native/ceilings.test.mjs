// The house stays light: each part has a ceiling of lines, without its tests. A feature that needs more removes something.
//
//   node --test tests/native/ceilings.test.mjs    also prints the table

import assert from 'node:assert/strict';
import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs';
import { extname, join } from 'node:path';
import { test } from 'node:test';
import { ROOT } from '../../native/dev/build.mjs';

/**
 * `aim`: the number of lines that a part should reach. Until then, its ceiling is lowered with every line removed. Models, headers, package
 * and programs grew by what looks into models, steers them by features and trains them, by families, images and encoder–decoder models, by
 * GGUF and convert, by passes over several texts, prefixes, processors of logits and look-up; CPU kernels by products with the six other
 * types of blocks of GGUF files. The page grew by a story of eight scenes with
 * its lessons, in two languages, by the model of its first screen, by the laboratory, and by the GPU for opened models; programs by the training of that model.
 */
const PARTS = [
  { name: 'CPU kernels', folders: ['src/cpu'], ceiling: 10_110, aim: 10_000 },
  { name: 'CUDA', folders: ['src/cuda'], ceiling: 9_985, aim: 9_800 },
  { name: 'WebGPU', folders: ['src/webgpu', 'bindings/src/gpu', 'bindings/src/types/gpu.ts'], ceiling: 5_858, aim: 4_500 },
  { name: 'engine and rules', folders: ['src/engine', 'src/rules'], ceiling: 9_450, aim: 8_300 },
  { name: 'modules, models, lab', folders: ['src/nn', 'src/models', 'src/lab'], ceiling: 21_923, aim: 11_000 },
  { name: 'distributed and public headers', folders: ['src/distributed', 'src/multihead'], ceiling: 7_092, aim: 6_000 },
  { name: 'package', folders: ['bindings'], ceiling: 32_162, aim: 24_000 },
  { name: 'page', folders: ['web'], ceiling: 21_159, aim: 17_500 },
  { name: 'programs and scripts', folders: ['native'], ceiling: 17_390, aim: 15_500 },
];
const SOURCES = new Set('.c .cc .cmake .cpp .css .cu .cuh .h .html .in .inc .js .mjs .mts .py .sh .ts .txt .wgsl'.split(' '));
/** Folders of tests, of what others wrote, and of what builds make. */
const LEFT_OUT = new Set(['dist', 'generated', 'node_modules', 'public', 'test']);

/** Paths in the package's folder that count as WebGPU. */
const GPU_OF_PACKAGE = ['bindings/src/gpu', 'bindings/src/types/gpu.ts'].map((path) => join(ROOT, path));

function* sourcesIn(path) {
  if (statSync(path).isFile()) {
    if (SOURCES.has(extname(path))) yield path;
    return;
  }
  for (const name of readdirSync(path)) {
    const inner = join(path, name);
    if (!LEFT_OUT.has(name) && !GPU_OF_PACKAGE.includes(inner)) yield* sourcesIn(inner);
  }
}

const linesOf = (path) => readFileSync(path, 'utf8').split('\n').length - 1;

test('each part stays below its ceiling of lines', () => {
  const rows = PARTS.map(({ name, folders, ceiling, aim }) => {
    const files = folders.filter((folder) => existsSync(join(ROOT, folder))).flatMap((folder) => [...sourcesIn(join(ROOT, folder))]);
    return { part: name, files: files.length, lines: files.reduce((sum, path) => sum + linesOf(path), 0), ceiling, aim };
  });
  console.table(rows);
  for (const { part, files, lines, ceiling } of rows) {
    assert.ok(files > 10, `${part}: its files were found`);
    assert.ok(lines <= ceiling, `${part}: expected at most ${ceiling} lines, got ${lines}: remove something, or say in the change why it needs more`);
  }
});
