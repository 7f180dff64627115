// The programs that the page's section "Use it" and its story show: the C++ programs print the same numbers as the JavaScript
// programs. web/test/{sections/code,story/program}.test.ts test that the page shows exactly these programs.
//
//   node --test tests/native/page_code.test.mjs        after npm run build

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { writeSafetensors } from '../../bindings/dist/index.js';

const root = fileURLToPath(new URL('../..', import.meta.url));
const at = (...path) => join(root, 'build', ...path);
const folder = at('page-code', 'native');
const programs = join(root, 'web', 'test', 'sections', 'programs');
const names = ['bent', 'plain', 'given', 'story'];

function output(...[program, ...words]) {
  const { status, stdout, stderr, error } = spawnSync(program, words, { encoding: 'utf8', cwd: folder });
  assert.equal(status, 0, `${program} ${words.join(' ')}\n${stdout}${stderr}${error ?? ''}`);
  return stdout;
}

const numbers = (text) => text.trim().split(/\s+/).map(Number);

before(() => {
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  let seed = 1;
  const tensor = (...shape) => ({
    shape,
    data: Float32Array.from({ length: shape.reduce((a, b) => a * b) }, () => {
      seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
      return seed / 2 ** 32 - 0.5;
    }),
  });
  const names4 = ['q_proj_weight', 'k_proj_weight', 'v_proj_weight', 'out_proj.weight'];
  const weights = Object.fromEntries(names4.map((name) => [name, tensor(64, 64)]));
  const x = tensor(1, 7, 64);
  writeFileSync(join(folder, 'sentence.safetensors'), writeSafetensors({ x, ...weights }));
  const biases = { in_proj_bias: tensor(192), 'out_proj.bias': tensor(64) };
  writeFileSync(join(folder, 'given.safetensors'), writeSafetensors({ x, ...weights, ...biases }));
  const { cxx } = JSON.parse(readFileSync(at('toolchain', 'manifest.json'), 'utf8'));
  for (const name of names) {
    for (const kind of ['cc', 'mjs']) {
      const program = readFileSync(join(programs, `${name}.${kind}.txt`), 'utf8');
      // The heads of a model have biases.
      writeFileSync(join(folder, `${name}.${kind}`), name === 'given' ? program.replace('sentence.safetensors', 'given.safetensors') : program);
    }
  }
  const targets = names.map(
    (name) => `add_executable(${name} ${name}.cc)
target_link_libraries(${name} PRIVATE multihead::multihead multihead::lab multihead::safetensors)`,
  );
  const project = ['cmake_minimum_required(VERSION 3.25)', 'project(page_code LANGUAGES CXX)', 'find_package(multihead REQUIRED)'];
  writeFileSync(join(folder, 'CMakeLists.txt'), `${[...project, ...targets].join('\n')}\n`);
  output('cmake', '--install', at('native'), '--prefix', join(folder, 'prefix'), '--strip');
  const told = [`-Dmultihead_ROOT=${join(folder, 'prefix')}`, `-DCMAKE_CXX_COMPILER=${cxx.path}`];
  output('cmake', '-S', folder, '-B', join(folder, 'made'), '-G', 'Ninja', '-DCMAKE_BUILD_TYPE=Debug', ...told);
  output('cmake', '--build', join(folder, 'made'));
});

for (const name of names) {
  test(`${name}: both programs print the same weights`, () => {
    const expected = numbers(output(process.execPath, `${name}.mjs`));
    const actual = numbers(output(join(folder, 'made', name)));
    assert.equal(expected.length, 7);
    assert.ok(Math.abs(expected.reduce((sum, weight) => sum + weight, 0) - 1) < 1e-3, expected.join(' '));
    assert.equal(actual.length, 7);
    actual.forEach((weight, key) => assert.ok(Math.abs(weight - expected[key]) < 1.5e-4, `${actual} and ${expected}`));
  });
}
