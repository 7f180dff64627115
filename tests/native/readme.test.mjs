// Tests the README's C++ program and the command lines of the README and of the guides, exactly as they are printed there, and
// the files that CONTRIBUTING.md names.
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
const guides = ['bindings/guides', 'native/guides'].flatMap((folder) => readdirSync(join(ROOT, folder)).map((name) => join(folder, name)));
const textOf = new Map([['README.md', readme], ...guides.map((guide) => [guide, readFileSync(join(ROOT, guide), 'utf8')])]);
const blocksOf = (text, wanted) =>
  [...text.matchAll(/^```(\w+)\n([\s\S]*?)^```/gm)].filter(([, language]) => language === wanted).map(([, , code]) => code);

/** The command lines of the README and the guides, without their comments. */
const commands = [...textOf.values()]
  .flatMap((text) => blocksOf(text, 'sh'))
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

test('the README has at most 150 lines', () => assert.ok(readme.trimEnd().split('\n').length <= 150));

test('the C++ program, built against the installed library', () => {
  const [program, ...more] = blocksOf(readme, 'cpp');
  assert.deepEqual(more, []);
  const project = readFileSync(join(ROOT, 'native', 'consumer', 'CMakeLists.txt'), 'utf8')
    .replaceAll('consumer', 'app')
    .replace('main.cc', 'app.cc');
  const [app, prefix, build] = ['app', 'prefix', 'build'].map((name) => join(folder, name));
  mkdirSync(app);
  writeFileSync(join(app, 'app.cc'), program);
  writeFileSync(join(app, 'CMakeLists.txt'), project);

  run('cmake', ['--install', join(ROOT, 'build', 'native'), '--prefix', prefix]);
  const toolchain = join(ROOT, 'build', 'toolchain', 'native.cmake');
  run('cmake', ['-S', app, '-B', build, '-G', 'Ninja', `-DCMAKE_TOOLCHAIN_FILE=${toolchain}`, `-Dmultihead_ROOT=${prefix}`]);
  run('cmake', ['--build', build]);
  assert.equal(run(join(build, 'app'), []), '2\n');
});

test('the programs of the command line', () => {
  const PATH = `${dirname(NATIVE_PROGRAM)}${delimiter}${process.env.PATH}`;
  // FOLDER is a model's; the golden ones are small.
  const model = join('tests', 'conformance', 'models', 'gpt2');
  const made = mkdtempSync(join(tmpdir(), 'multihead-readme-'));
  const lines = new Set(beginningWith('multihead-').map((line) => line.replace('FOLDER', model).replace('SMALLER', join(made, 'smaller'))));
  assert.equal(lines.size, 14);
  for (const line of lines) {
    // Running a benchmark takes too long: check that its name exists.
    const isBenchmark = line.startsWith('multihead-bench');
    const command = isBenchmark ? `${line} --benchmark_list_tests` : line;
    const stdout = execFileSync('sh', ['-c', command], { cwd: ROOT, encoding: 'utf8', env: { ...process.env, PATH } });
    assert.notEqual(stdout.trim(), '', line);
    if (line.includes('--json')) JSON.parse(stdout);
    if (isBenchmark) assert.match(stdout, /gpt2/);
  }
  rmSync(made, { recursive: true });
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
  readArguments(
    line
      .replaceAll("'", '')
      .split(' ')
      .slice(3)
      .filter((argument) => argument !== '--'),
  );

test('the options of the benchmarks', () => {
  const lines = beginningWith('npm run bench');
  assert.equal(lines.length, 3);
  for (const line of lines) checkBenchmark(line);
});

test("the README's chart shows the figures of the benchmarks", () => {
  const [chart, benchmarks] = ['speed.svg', 'BENCHMARKS.md'].map((name) => readFileSync(join(ROOT, 'native', name), 'utf8'));
  const rows = chart.split(/<text [^>]*text-anchor="end">/).slice(1);
  assert.equal(rows.length, 5);
  for (const row of rows) {
    const name = row.slice(0, row.indexOf('<'));
    const rowsOf = (begin) => benchmarks.split('\n').filter((line) => line.startsWith(`| \`${name}${begin}\` | `));
    const ours = Number(rowsOf('')[0].split('|')[3].trim().split(' ')[0]); // relaxed SIMD
    const peers = [...rowsOf('/threads:1')[1].matchAll(/\(([\d.]+)×\)/g)].map(([, ratio]) => ours / Number(ratio)); // the second table: WebAssembly
    const shown = [...row.matchAll(/fill="#333">([\d.]+)</g)].map(([, value]) => value);
    assert.deepEqual(
      shown,
      [ours, ...peers].map((value) => (value < 10 ? value.toFixed(1) : value.toFixed(0))),
      name,
    );
  }
});

test('links of the READMEs and the guides lead to files and headings', () => {
  assert.equal(guides.length, 16);
  const packageReadme = readFileSync(join(ROOT, 'bindings', 'README.md'), 'utf8');
  const headingsOf = (text) =>
    [...text.matchAll(/^#+ (.+)$/gm)].map(([, title]) =>
      title
        .toLowerCase()
        .replace(/[^\w -]/g, '')
        .replaceAll(' ', '-'),
    );
  for (const [path, text] of [...textOf, ['bindings/README.md', packageReadme]]) {
    for (const [, link] of text.matchAll(/\]\(([^)]+)\)/g)) {
      if (link.startsWith('http')) continue;
      const [file, heading] = link.split('#');
      const target = file === '' ? path : join(dirname(path), file);
      assert.ok(existsSync(join(ROOT, target)), `${path}: ${link}`);
      if (heading) assert.ok(headingsOf(readFileSync(join(ROOT, target), 'utf8')).includes(heading), `${path}: ${link}`);
    }
  }
});

test('the README links to every guide of the programs and the library, and the front page of the reference to all guides', () => {
  const front = readFileSync(join(ROOT, 'native', 'dev', 'docs', 'index.md'), 'utf8');
  for (const guide of guides) {
    if (guide.startsWith('native')) assert.ok(readme.includes(`](${guide})`), guide);
    assert.ok(front.includes(`${guide.replace('native', '')})`), guide);
  }
});

test('files, links and benchmarks of CONTRIBUTING.md exist', () => {
  const text = readFileSync(join(ROOT, '.github', 'CONTRIBUTING.md'), 'utf8');
  for (const [, link] of text.matchAll(/\]\(\.\.\/([^)#]+)/g)) assert.ok(existsSync(join(ROOT, link)), link);
  const files = ['src', 'tests', 'bindings/src', 'bindings/test', 'native'].flatMap((folder) =>
    readdirSync(join(ROOT, folder), { recursive: true }).map((path) => `${folder}/${path}`),
  );
  const named = [...text.matchAll(/`([\w./-]+\.(?:cc|h|ts|mjs|inc))`/g)].map(([, name]) => name);
  assert.ok(named.length > 30, `${named.length} files`);
  for (const name of named) assert.ok(existsSync(join(ROOT, name)) || files.some((path) => path.endsWith(`/${name}`)), name);
  const lines = [...text.matchAll(/^npm run bench.*$/gm)].map(([line]) => line.replace(/\s+#.*/, ''));
  assert.equal(lines.length, 3);
  for (const line of lines) checkBenchmark(line);
});

test('scripts, presets and options that the README and the guides name exist', () => {
  const { scripts, workspaces } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  const words = [...textOf.values()].join('\n');
  for (const [, script] of words.matchAll(/\bnpm run ([\w-]+)/g)) assert.ok(scripts[script], `npm run ${script}`);
  for (const [, script] of words.matchAll(/\bnpm (start|test)\b/g)) assert.ok(scripts[script], `npm ${script}`);
  assert.ok(workspaces.includes('bindings'));
  const { configurePresets } = JSON.parse(readFileSync(join(ROOT, 'CMakePresets.json'), 'utf8'));
  const presets = configurePresets.filter(({ hidden }) => !hidden).map(({ name }) => name);
  for (const preset of presets) assert.ok(textOf.get('native/guides/testing.md').includes(`\`${preset}\``), `preset ${preset}`);
  for (const [, preset] of words.matchAll(/--preset (\w+)/g)) assert.ok(presets.includes(preset), `preset ${preset}`);
  const listed = ['CMakeLists.txt', 'src/cuda.cmake'].map((file) => join(ROOT, file));
  const options = listed.map((file) => readFileSync(file, 'utf8')).join('\n');
  for (const [, option] of words.matchAll(/-D(MULTIHEAD_\w+)=/g)) assert.ok(options.includes(option), option);
});
