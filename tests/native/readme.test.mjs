// Tests the README's C++ program, CMakeLists.txt and command lines, exactly as they are printed there, and the files
// that CONTRIBUTING.md names.
//
//   node --test tests/native/readme.test.mjs        after a build

import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { after, before, test } from 'node:test';
import { ROOT } from '../../native/dev/build.mjs';
import { readArguments } from '../../native/dev/bench/arguments.mjs';
import { NATIVE_PROGRAM } from '../../native/dev/bench/programs.mjs';

const readme = readFileSync(join(ROOT, 'README.md'), 'utf8');
const blocks = [...readme.matchAll(/^```(\w+)\n([\s\S]*?)^```/gm)].map(([, language, code]) => ({ language, code }));
const ofLanguage = (language) => blocks.filter((block) => block.language === language).map(({ code }) => code);

/** The command lines, without their comments. */
const commands = ofLanguage('sh')
  .flatMap((code) => code.trim().split('\n'))
  .map((line) => line.replace(/\s+#.*/, ''));
const beginningWith = (...starts) => commands.filter((line) => starts.some((start) => line.startsWith(start)));

let folder;
before(() => {
  folder = mkdtempSync(join(tmpdir(), 'multihead-readme-'));
});
after(() => rmSync(folder, { recursive: true }));

const run = (program, args, options) => {
  const { status, stdout, stderr, error } = spawnSync(program, args, { encoding: 'utf8', ...options });
  assert.equal(status, 0, `${program} ${args.join(' ')}\n${error ?? ''}${stdout}${stderr}`);
  return stdout;
};

test('the C++ program and its continuation, built with the CMakeLists.txt against the installed library', () => {
  const [program, continuation, ...more] = ofLanguage('cpp');
  const [project, ...others] = ofLanguage('cmake');
  assert.deepEqual([more, others], [[], []]);
  const end = program.lastIndexOf('}');
  const source = `${program.slice(0, end)}\n${continuation}\n  std::printf("%g\\n", out[1]);\n}\n`;
  const [app, prefix, build] = ['app', 'prefix', 'build'].map((name) => join(folder, name));
  mkdirSync(app);
  writeFileSync(join(app, 'app.cc'), source);
  writeFileSync(join(app, 'CMakeLists.txt'), project);

  run('cmake', ['--install', join(ROOT, 'build', 'native'), '--prefix', prefix]);
  const toolchain = join(ROOT, 'build', 'toolchain', 'native.cmake');
  run('cmake', ['-S', app, '-B', build, '-G', 'Ninja', `-DCMAKE_TOOLCHAIN_FILE=${toolchain}`, `-Dmultihead_ROOT=${prefix}`]);
  run('cmake', ['--build', build]);
  assert.equal(run(join(build, 'app'), []), '2\n2\n');
});

test('the programs of the command line', () => {
  const PATH = `${dirname(NATIVE_PROGRAM)}${delimiter}${process.env.PATH}`;
  // FOLDER is a model's; the golden ones are small.
  const model = join('tests', 'conformance', 'models', 'gpt2');
  const lines = beginningWith('multihead-').map((line) => line.replace('FOLDER', model));
  assert.equal(lines.length, 7);
  for (const line of lines) {
    // Running a benchmark takes too long: check that its name exists.
    const isBenchmark = line.startsWith('multihead-bench');
    const command = isBenchmark ? `${line} --benchmark_list_tests` : line;
    const stdout = execFileSync('sh', ['-c', command], { cwd: ROOT, encoding: 'utf8', env: { ...process.env, PATH } });
    assert.notEqual(stdout.trim(), '', line);
    if (line.includes('--json')) JSON.parse(stdout);
    if (isBenchmark) assert.match(stdout, /gpt2/);
  }
});

test('the longer random tests exist under their names', () => {
  const lines = beginningWith('MULTIHEAD_RANDOM_CASES=');
  assert.equal(lines.length, 5);
  for (const line of lines) {
    assert.match(line, /build\/(native|arm64|wasm)\/tests\/multihead_tests/);
    if (!line.includes('build/native')) continue; // files of other builds contain the same tests
    const output = execFileSync('sh', ['-c', `${line} --gtest_list_tests`], { cwd: ROOT, encoding: 'utf8' });
    assert.match(output, /RandomCalls/);
  }
});

const checkBenchmark = (line) =>
  readArguments(line.replaceAll("'", '').split(' ').slice(3).filter((argument) => argument !== '--'));

test('the options of the benchmarks', () => {
  const lines = beginningWith('npm run bench');
  assert.equal(lines.length, 3);
  for (const line of lines) checkBenchmark(line);
});

test('links of the guides lead to files', () => {
  const guides = ['bindings/guides', 'native/guides'].flatMap((folder) => readdirSync(join(ROOT, folder)).map((name) => join(folder, name)));
  assert.equal(guides.length, 6);
  for (const guide of guides) {
    for (const [, link] of readFileSync(join(ROOT, guide), 'utf8').matchAll(/\]\(([^)]+)\)/g)) {
      if (!link.startsWith('http')) assert.ok(existsSync(join(ROOT, dirname(guide), link)), `${guide}: ${link}`);
    }
  }
});

test('files, links and benchmarks of CONTRIBUTING.md exist', () => {
  const text = readFileSync(join(ROOT, '.github', 'CONTRIBUTING.md'), 'utf8');
  for (const [, link] of text.matchAll(/\]\(\.\.\/([^)#]+)/g)) assert.ok(existsSync(join(ROOT, link)), link);
  const files = ['src', 'tests', 'bindings/src', 'bindings/test', 'native']
    .flatMap((folder) => readdirSync(join(ROOT, folder), { recursive: true }).map((path) => `${folder}/${path}`));
  const named = [...text.matchAll(/`([\w./-]+\.(?:cc|h|ts|mjs|inc))`/g)].map(([, name]) => name);
  assert.ok(named.length > 30, `${named.length} files`);
  for (const name of named) assert.ok(existsSync(join(ROOT, name)) || files.some((path) => path.endsWith(`/${name}`)), name);
  const lines = [...text.matchAll(/^npm run bench.*$/gm)].map(([line]) => line.replace(/\s+#.*/, ''));
  assert.equal(lines.length, 3);
  for (const line of lines) checkBenchmark(line);
});

test('scripts, presets and files that the README names exist', () => {
  const { scripts, workspaces } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  for (const [, script] of readme.matchAll(/\bnpm run ([\w-]+)/g)) assert.ok(scripts[script], `npm run ${script}`);
  for (const [, script] of readme.matchAll(/\bnpm (start|test)\b/g)) assert.ok(scripts[script], `npm ${script}`);
  assert.ok(workspaces.includes('bindings'));
  const { configurePresets } = JSON.parse(readFileSync(join(ROOT, 'CMakePresets.json'), 'utf8'));
  const presets = configurePresets.filter(({ hidden }) => !hidden).map(({ name }) => name);
  for (const preset of presets) assert.ok(readme.includes(`\`${preset}\``), `preset ${preset}`);
  for (const [, link] of readme.matchAll(/\]\(([^)#]+)\)/g)) {
    if (!link.startsWith('http')) assert.ok(existsSync(join(ROOT, link)), link);
  }
  const [standalone, ...others] = beginningWith('cmake ');
  assert.deepEqual(others, []);
  const listed = readFileSync(join(ROOT, 'CMakeLists.txt'), 'utf8');
  for (const [, option] of standalone.matchAll(/-D(\w+)=/g)) assert.ok(listed.includes(option), option);
});
