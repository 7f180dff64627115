// multihead-train: its output and its files, how a run is resumed, and the arguments that it refuses.
//
//   node --test tests/native/train.test.mjs        after a build

import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, lstatSync, mkdtempSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { NATIVE_PROGRAM } from '../../native/dev/bench/programs.mjs';

const program = join(dirname(NATIVE_PROGRAM), 'multihead-train');
const run = (...args) => spawnSync(program, args, { encoding: 'utf8' });

let folder;
const at = (name) => join(folder, name);
before(() => {
  folder = mkdtempSync(join(tmpdir(), 'multihead-train-'));
  writeFileSync(at('text.txt'), 'the black cat sat on the mat; grüße. '.repeat(60));
});
after(() => rmSync(folder, { recursive: true }));

function printed(...args) {
  const { status, stdout, stderr } = run(...args);
  assert.equal(status, 0, `${args.join(' ')}\n${stderr}`);
  assert.equal(stderr, '');
  return stdout;
}

const json = (...args) => JSON.parse(printed(...args, '--json'));

function refused(code, message, ...args) {
  const { status, stdout, stderr } = run(...args);
  assert.equal(status, code, `${args.join(' ')}\n${stderr}`);
  assert.equal(stdout, '', args.join(' '));
  assert.match(stderr, message);
}

const QUICK = ['--steps', '30', '--batch', '2', '--threads', '1'];
const SMALL_TEXT = ['--layers', '1', '--width', '16', '--heads', '2', '--context', '16', '--sample', '20'];

const noFullDisk = existsSync('/dev/full') ? false : 'there is no /dev/full';

test('four jobs as text: the curve, which head does which job, and the ablation table', () => {
  const text = printed('four-jobs', ...QUICK);
  assert.match(text, /^four-jobs, heads: 4, layers: 1, seed: 1; 24\d\d\d parameters, positions: rope; \w+, threads: 1$/m);
  assert.match(text, /^ +step +loss +accuracy +held out: +loss +previous token +two back +latest vowel +latest star$/m);
  assert.match(text, /^ +30 +\d\.\d{4} +\d+\.\d %/m);
  assert.match(text, /^30 steps in \d+\.\d\d s$/m);
  for (const title of ['Mean attention on the keys that hold the answer', 'Accuracy with one head muted']) {
    const lines = text.split('\n');
    const table = lines.slice(lines.indexOf(title));
    assert.match(table[1], /^ +previous token  two back  latest vowel  latest star$/);
    for (const head of [1, 2, 3, 4])
      assert.ok(
        table.some((line) => line.startsWith(`  head ${head} `)),
        head,
      );
  }
});

test('induction as JSON', () => {
  const result = json('induction', ...QUICK, '--seed', '5', '--heads', '4');
  const { experiment, heads, layers, seed, positions, steps, batch, steps_done: done, interrupted } = result;
  assert.deepEqual(
    { experiment, heads, layers, seed, positions, steps, batch, done, interrupted },
    { experiment: 'induction', heads: 4, layers: 2, seed: 5, positions: 'rope', steps: 30, batch: 2, done: 30, interrupted: false },
  );
  assert.deepEqual(
    result.curve.map(({ step }) => step),
    Array.from({ length: 30 }, (_, i) => i + 1),
  );
  assert.ok(result.curve.at(-1).held_out.loss > 0);
  assert.deepEqual(Object.keys(result.held_out.jobs), ['next token']);
  assert.equal(result.held_out.jobs['next token'], result.held_out.accuracy);
  assert.equal(result.attention_heads.length, 8);
  const { layer, head, attention, accuracy_if_muted: muted } = result.attention_heads[5];
  assert.deepEqual([layer, head], [2, 2]);
  assert.deepEqual(Object.keys(attention), ['previous token', 'induction']);
  assert.deepEqual(Object.keys(muted), ['next token']);
});

test('the same seed gives the same curve, with any number of threads; another seed another one', () => {
  const curve = (...args) => JSON.stringify(json('four-jobs', '--steps', '5', '--batch', '2', ...args).curve);
  const once = curve('--threads', '1');
  assert.equal(curve('--threads', '2'), once);
  assert.notEqual(curve('--seed', '2'), once);
});

test('every kind of positions trains', () => {
  for (const positions of ['rope', 'learned', 'alibi', 'none']) {
    const { curve } = json('induction', '--steps', '2', '--batch', '1', '--positions', positions);
    assert.ok(curve[1].loss > 0, positions);
  }
});

const rowsOf = (name) => readFileSync(at(name), 'utf8').trimEnd().split('\n');

/** Runs the program and interrupts it after its first measurement. */
async function interrupted(...args) {
  const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  const said = { stdout: '', stderr: '' };
  let sent = false; // a second Ctrl-C would end it at once
  for (const stream of ['stdout', 'stderr']) {
    child[stream].setEncoding('utf8').on('data', (text) => {
      said[stream] += text;
      if (!sent && /^ +\d+ +\d+\.\d{4}/m.test(said.stdout)) sent = child.kill('SIGINT');
    });
  }
  const status = await new Promise((resolve) => child.on('close', (code, signal) => resolve(code ?? signal)));
  return { status, ...said };
}

// The runs have enough steps that they do not end before the signal arrives.
for (const [command, steps, ...args] of [
  ['four-jobs', 240],
  ['text', 3000, ...SMALL_TEXT],
]) {
  test(`${command}: interrupted and resumed, the curve is that of one run`, async () => {
    const file = command === 'text' ? [at('text.txt')] : [];
    const common = [command, ...file, ...args, '--steps', String(steps), '--batch', '1', '--threads', '1'];
    printed(...common, '--csv', at('whole.csv'));
    const checkpoint = at(`${command} checkpoint`); // with a blank: the printed command has to quote it
    const { status, stderr } = await interrupted(...common, '--checkpoint', checkpoint, '--csv', at('first.csv'));
    assert.equal(status, 130, stderr);
    const [, done, toContinue] = /^Stopped after step (\d+) of \d+\. To continue:\n {2}(.*)\n$/.exec(stderr);
    assert.ok(Number(done) >= steps / 12 && Number(done) < steps, done);
    const resumed = spawnSync('sh', ['-c', `${toContinue} --json`], { encoding: 'utf8' });
    assert.equal(resumed.status, 0, resumed.stderr);
    assert.equal(JSON.parse(resumed.stdout).resumed_from, Number(done));
    // The resumed run has rewritten the first run's file with all steps.
    assert.equal(rowsOf('whole.csv').length, 1 + steps);
    assert.deepEqual(rowsOf('first.csv'), rowsOf('whole.csv'));
    // Nothing is left to train.
    const { curve, steps_done: all, resumed_from: before } = json(...common, '--resume', checkpoint);
    assert.deepEqual([curve.length, all, before], [steps, steps, steps]);
  });
}

test('the npm package and the program continue each other’s checkpoints of experiments', async () => {
  const { load } = await import('../../bindings/dist/index.js');
  const { createExperiment } = await import('../../bindings/dist/lab.js');
  const experiment = createExperiment(await load(), { kind: 'fourJobs', numHeads: 2, seed: 3, positions: 'alibi', batch: 1 });
  const common = ['four-jobs', '--heads', '2', '--seed', '3', '--positions', 'alibi', '--batch', '1'];
  experiment.step();
  writeFileSync(at('from npm'), experiment.checkpoint());
  const { curve, resumed_from: before } = json(...common, '--steps', '3', '--resume', at('from npm'), '--checkpoint', at('to npm'));
  assert.deepEqual([before, curve.map(({ step }) => step)], [1, [2, 3]]);
  experiment.restore(readFileSync(at('to npm')));
  assert.equal(experiment.step().step, 4);
  refused(2, /^--positions: expected alibi, as in .*from npm, got rope$/m, ...common.slice(0, 5), '--resume', at('from npm'));
  experiment.dispose();
});

test('without a checkpoint, an interrupted run says that nothing was kept', async () => {
  const { status, stderr } = await interrupted('four-jobs', '--steps', '100000', '--batch', '1', '--threads', '1');
  assert.equal(status, 130);
  assert.match(stderr, /^Stopped after step \d+ of 100000\. Nothing was kept: --checkpoint FILE does that\.$/m);
});

test('a text: losses, a sample of its own characters, samples on the way', () => {
  const args = ['text', at('text.txt'), ...SMALL_TEXT, ...QUICK, '--seed', '3'];
  const result = json(...args, '--prompt', 'the ');
  assert.equal(result.tokens, 37 * 60);
  assert.equal(result.of_bytes, false);
  assert.equal(result.vocabulary, new Set('the black cat sat on the mat; grüße. ').size);
  assert.ok(result.curve.at(-1).loss < result.curve[0].loss);
  assert.ok(result.sample.startsWith('the '));
  assert.equal([...result.sample].length, 4 + 20);
  assert.equal(json(...args, '--prompt', 'the ').sample, result.sample);
  // Request a sample that is longer than the context.
  const longer = args.map((arg, i) => (args[i - 1] === '--sample' ? '50' : arg));
  assert.equal([...json(...longer).sample].length, 1 + 50);
  const text = printed(...args, '--sample-every', '10', '--temperature', '0');
  assert.match(text, /^2220 characters of \d+ kinds, the last 222 held out$/m);
  assert.match(text, /^Held out: loss \d\.\d{4}, accuracy \d+\.\d %$/m);
});

test('a file that is not UTF-8 is learned byte by byte', () => {
  writeFileSync(at('bytes'), Buffer.from(Array.from({ length: 400 }, (_, i) => (i % 7) * 40)));
  const result = json('text', at('bytes'), ...SMALL_TEXT, ...QUICK);
  assert.deepEqual([result.of_bytes, result.tokens, result.vocabulary], [true, 400, 7]);
});

/** True if tags are properly nested and closed, and attributes are quoted. */
function isWellFormed(xml) {
  const open = [];
  const rest = xml.replace(/<(\/?)([a-z]+)((?: [a-zA-Z:0-9-]+="[^"<>&]*")*)(\/?)>/g, (_, end, name, attributes, empty) => {
    if (end) return open.pop() === name ? '' : '<';
    if (!empty) open.push(name);
    return '';
  });
  return open.length === 0 && !/[<>]|&(?!amp;|lt;|gt;|quot;)/.test(rest.replace(/&gt;/g, ''));
}

test('the chart is a well-formed SVG for light and dark pages', () => {
  printed('four-jobs', ...QUICK, '--chart', at('curve.svg'));
  const svg = readFileSync(at('curve.svg'), 'utf8');
  assert.ok(isWellFormed(svg), svg);
  assert.ok(!isWellFormed(svg.replace('</svg>', '')) && !isWellFormed(svg.replace('<title>', '<title><b>')));
  assert.match(svg, /@media \(prefers-color-scheme: dark\)/);
  for (const name of ['training', 'held out', 'previous token', 'two back', 'latest vowel', 'latest star']) {
    assert.ok(svg.includes(`>${name}</text>`), name);
  }
  assert.equal(svg.match(/<polyline/g).length, 2 + 1 + 4);
  assert.ok(!/NaN|inf/.test(svg));
  // Test a name that has to be escaped, and a single step.
  writeFileSync(at('a<b>&"c".txt'), readFileSync(at('text.txt')));
  printed('text', at('a<b>&"c".txt'), ...SMALL_TEXT, '--steps', '1', '--chart', at('one.svg'));
  assert.ok(isWellFormed(readFileSync(at('one.svg'), 'utf8')));
});

test('wrong arguments give 2 and name the option', () => {
  refused(2, /subcommand is required/);
  refused(2, /--fliter/, 'four-jobs', '--fliter');
  refused(2, /^num_heads: expected a divisor of embed_dim = 64 .*, got 3$/m, 'four-jobs', '--heads', '3');
  refused(2, /--steps/, 'four-jobs', '--steps', '0');
  refused(2, /--batch/, 'induction', '--batch', '-1');
  refused(2, /--positions: .*rope,learned,alibi,none/, 'induction', '--positions', 'sine');
  refused(2, /^learning_rate: .*, got 0$/m, 'four-jobs', '--learning-rate', '0');
  refused(2, /^learning_rate: .*, got NaN$/m, 'four-jobs', '--learning-rate', 'nan');
  refused(2, /^--csv: expected a file in a folder that exists, got .*none/, 'four-jobs', '--csv', at('none/curve.csv'));
  refused(2, /^--checkpoint: expected a file, got the folder /, 'four-jobs', '--checkpoint', folder);
  refused(2, /^--seed: expected an integer from 0 to 2\^64 - 1, got -1$/m, 'four-jobs', '--seed', '-1');
  refused(2, /^--seed: .*, got 18446744073709551616$/m, 'four-jobs', '--seed', '18446744073709551616');
  refused(2, /^--temperature: expected a number from 0 to 100, got nan$/m, 'text', at('text.txt'), '--temperature', 'nan');
  refused(2, /file is required/, 'text');
  writeFileSync(at('empty'), '');
  refused(2, /empty: expected a text, got an empty file$/m, 'text', at('empty'));
  writeFileSync(at('short'), 'x'.repeat(649));
  refused(2, /short: expected at least 650 characters for a --context of 64, got 649$/m, 'text', at('short'));
  refused(2, /^--prompt: expected characters that occur in the text, got "Q"$/m, 'text', at('text.txt'), '--prompt', 'Q');
});

test('no output replaces a device or another file of the command line', () => {
  // Test a link: renaming a finished checkpoint would replace it, and the device itself in the same way.
  symlinkSync('/dev/null', at('device'));
  refused(2, /^--checkpoint: expected a file, got the device .*device$/m, 'four-jobs', '--checkpoint', at('device'));
  assert.ok(lstatSync(at('device')).isSymbolicLink());
  const text = readFileSync(at('text.txt'));
  for (const option of ['--checkpoint', '--csv', '--chart']) {
    const message = new RegExp(`^${option}: expected another file than the text, got `, 'm');
    refused(2, message, 'text', at('text.txt'), option, join(folder, '.', 'text.txt'));
  }
  assert.deepEqual(readFileSync(at('text.txt')), text);
  refused(2, /^--csv: expected another file than --checkpoint, got /m, 'four-jobs', '--checkpoint', at('same'), '--csv', at('same'));
  refused(2, /^--chart: expected another file than --csv, got /m, 'four-jobs', '--csv', at('same'), '--chart', at('same'));
  printed('four-jobs', ...QUICK, '--csv', '/dev/null', '--chart', '/dev/null');
});

test('the old file stays if the new one cannot be written, and a link stays one', { skip: noFullDisk }, () => {
  // Limit the size of files, which acts like a full disk. The limit, 1024 bytes or more, leaves room for the file that
  // LLVM's OpenMP makes in /dev/shm under the number of its process: below 1024 bytes, an empty file would stay there,
  // and any later process with that number would die of SIGBUS.
  const limited = 'trap "" XFSZ; ulimit -f 2; exec "$0" "$@"';
  for (const option of ['--checkpoint', '--csv', '--chart']) {
    writeFileSync(at('old'), 'old');
    const args = ['four-jobs', '--steps', '200', '--batch', '1', '--threads', '1', option, at('old')];
    const { status, stderr } = spawnSync('sh', ['-c', limited, program, ...args], { encoding: 'utf8' });
    assert.equal(status, 3, stderr);
    assert.match(stderr, /old.*(cannot be written|expected a file that can be written)/);
    assert.equal(readFileSync(at('old'), 'utf8'), 'old', option);
    assert.ok(!existsSync(at('old.part')), option);
  }
  symlinkSync('old', at('link'));
  printed('four-jobs', ...QUICK, '--csv', at('link'));
  assert.ok(lstatSync(at('link')).isSymbolicLink());
  assert.equal(rowsOf('old').length, 1 + 30);
});

test('a curve that cannot be written gives 3 after the results are printed', { skip: noFullDisk }, () => {
  const { status, stdout, stderr } = run('four-jobs', ...QUICK, '--csv', '/dev/full');
  assert.equal(status, 3);
  assert.match(stdout, /^Accuracy with one head muted$/m);
  assert.match(stderr, /^--csv: \/dev\/full cannot be written \(No space left/);
});

test('killed at any moment and resumed, the curve is that of one run', async () => {
  const args = ['four-jobs', '--steps', '150', '--batch', '1', '--threads', '1', '--checkpoint-every', '1'];
  printed(...args, '--csv', at('unharmed.csv'));
  const checkpoint = at('killed');
  for (let kill = 0; kill < 6; kill += 1) {
    const resume = existsSync(checkpoint) ? ['--resume', checkpoint] : [];
    const child = spawn(program, [...args, ...resume, '--checkpoint', checkpoint], { stdio: 'ignore' });
    const closed = new Promise((resolve) => child.on('close', resolve));
    await delay(20 + Math.random() * 60);
    child.kill('SIGKILL');
    await closed;
  }
  const resume = existsSync(checkpoint) ? ['--resume', checkpoint] : [];
  printed(...args, ...resume, '--csv', at('harmed.csv'));
  assert.deepEqual(rowsOf('harmed.csv'), rowsOf('unharmed.csv'));
});

test('files that cannot be read give 3', () => {
  refused(3, /none: cannot be read \(No such file/, 'text', at('none'));
  refused(3, /cannot be read/, 'text', folder);
  refused(3, /./, 'four-jobs', '--resume', at('none'));
  refused(3, /./, 'four-jobs', '--resume', at('text.txt'));
});

test('names of files are shown on one line, without what steers a terminal', () => {
  const wrong = at('a\n\u202eb\x1b[2Jc');
  refused(3, /a\\u000a\\u202eb\\u001b\[2Jc: cannot be read/, 'text', wrong);
  refused(3, /a\\u000a\\u202eb\\u001b\[2Jc: expected a readable file/, 'four-jobs', '--resume', wrong);
});

test('a checkpoint of another model is refused', () => {
  printed('four-jobs', ...QUICK, '--checkpoint', at('jobs'));
  assert.ok(statSync(at('jobs')).size > 3 * 4 * 24000);
  refused(2, /^state_dict: .*got /, 'induction', '--heads', '4', '--resume', at('jobs'));
  refused(2, /^--heads: expected 4, as in .*jobs, got 2$/m, 'four-jobs', '--heads', '2', '--resume', at('jobs'));
  refused(2, /^--seed: expected 1, as in .*jobs, got 2$/m, 'four-jobs', '--seed', '2', '--resume', at('jobs'));
  refused(2, /^--positions: expected rope, as in .*jobs, got none$/m, 'four-jobs', '--positions', 'none', '--resume', at('jobs'));
  refused(2, /no run\.vocabulary$/m, 'text', at('text.txt'), '--resume', at('jobs'));
});

test('--help of each command names every option', () => {
  const common = '--steps --batch --learning-rate --seed --positions --threads --checkpoint --checkpoint-every --resume --json --csv --chart';
  const own = {
    'four-jobs': '--heads --layers',
    induction: '--heads --layers',
    text: 'file --layers --width --heads --context --sample --sample-every --prompt --temperature',
  };
  for (const [command, options] of Object.entries(own)) {
    const help = printed(command, '--help');
    for (const option of `${common} ${options}`.split(' ')) assert.ok(help.includes(option), `${command} ${option}`);
    assert.ok(printed('--help').includes(command));
  }
});
