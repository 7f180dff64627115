// The benchmark scripts: arguments, output formats, and that all runners agree. Timings are not checked.
//
//   node --test tests/native/bench.test.mjs        after a build

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { CASES, caseOf, chosenCases, reportCases } from '../../bindings/bench/cases.mjs';
import { inputsOf, randomFloats, swapMiddle, visiblePairs } from '../../bindings/bench/inputs.mjs';
import { largestDifference, measureCase } from '../../bindings/bench/measure.mjs';
import { onnxModel } from '../../bindings/bench/peers/onnx_bytes.mjs';
import { onnxWays } from '../../bindings/bench/peers/onnx_graphs.mjs';
import { header, machineLine, row } from '../../bindings/bench/rows.mjs';
import { operationsOf } from '../../bindings/bench/work.mjs';
import { readArguments } from '../../native/dev/bench/arguments.mjs';
import { chart, ticks } from '../../native/dev/bench/chart.mjs';
import { complaintsOf } from '../../native/dev/bench/document.mjs';
import { NATIVE_PROGRAM, nativeRun, wasmRun } from '../../native/dev/bench/programs.mjs';
import { markdown } from '../../native/dev/bench/table.mjs';

const machine = {
  runner: 'native',
  simd: 'AVX2',
  cpu: 'A & B',
  threads: 2,
  fma_peak: 100,
  read_stream: 20,
  read_stream_all: 30,
};
const forward = {
  name: 'forward/tiny/full/f32/threads:1',
  us: 8.25,
  cold_us: 33.2,
  GFLOPS: 32,
  pct_peak: 32,
  err: 4e-8,
  scratch_kB: 9,
  peers: { eigen: { us: 16.5, GFLOPS: 16, ratio: 2, diff: 1e-7 }, other: { message: 'out of <range>' } },
};
const decode = {
  name: 'decode/a/full/f32/threads:2',
  us: 900,
  cold_us: 1000,
  GFLOPS: 39,
  pct_peak: 19,
  GBps: 15,
  pct_stream: 50,
  err: 0,
  peers: {},
};
const start = { name: 'start/multihead/threads:1', us: 43_000, least_us: 40_000, most_us: 55_500, pages: 15, peers: {} };
const document = { runs: [{ machine, benchmarks: [forward, decode, start] }] };

const multiheadBench = (...args) => spawnSync(NATIVE_PROGRAM, args, { encoding: 'utf8' });

/** Collects the events of a run: { machine, benchmarks }. */
async function gathered(events) {
  const run = { benchmarks: [] };
  for await (const event of events) {
    if (event.machine) run.machine = event.machine;
    else run.benchmarks.push(event.benchmark);
  }
  return run;
}

test('arguments: given values, and defaults', () => {
  const options = readArguments(['wasm', 'browser', '--filter', 'tiny|bert', '--json=a.json', '--no-build', '--peers']);
  assert.deepEqual(options.where, ['wasm', 'browser']);
  assert.equal(options.filter, 'tiny|bert');
  assert.equal(options.json, 'a.json');
  assert.equal(options.build, false);
  assert.equal(options.peers, true);
  assert.deepEqual(readArguments([]).where, ['native', 'wasm']);
  assert.equal(readArguments([]).build, true);
});

test('arguments: an invalid one is reported with what was expected and what came', () => {
  const wrong = [
    [['--fliter=x'], /'--fliter'; expected native, wasm, browser, page or --filter, /],
    [['nativ'], /Expected native, wasm, browser, page; got nativ/],
    [['--simd=avx'], /--simd: expected relaxed, simd128, both; got avx/],
    [['--browser', 'lynx'], /--browser: expected chromium, firefox, both; got lynx/],
    [['--chart', 'a.png'], /--chart: expected a name that ends in \.svg; got a\.png/],
    [['--workers', '0,2'], /--workers: expected numbers such as 1,2; got 0,2/],
    [['--filter', '('], /--filter: expected a regular expression; got \(/],
    [['--json'], /--json/],
    [['--peers=yes'], /--peers/],
  ];
  for (const [args, message] of wrong) assert.throws(() => readArguments(args), { message }, args.join(' '));
});

test('multihead-bench: an invalid argument is reported', () => {
  const target = multiheadBench('--target=mmx');
  assert.equal(target.status, 2);
  assert.match(target.stderr, /--target: expected one of .*(SSE|AVX|NEON|EMU).*, got mmx/);
  const unknown = multiheadBench('--fliter=x');
  assert.equal(unknown.status, 2);
  assert.match(unknown.stderr, /--fliter=x[^]*expected --target=NAME/);
  assert.match(multiheadBench('--save=/no/such').stderr, /--save: expected a folder, got \/no\/such/);
  assert.equal(multiheadBench('--benchmark_filter=nothing').status, 2);
});

test('multihead-bench: cases on a GPU are listed without one; what they cannot have is refused', () => {
  const listed = multiheadBench('--device=cuda', '--benchmark_list_tests');
  assert.equal(listed.status, 0, listed.stderr);
  const names = listed.stdout.trim().split('\n');
  assert.ok(
    names.every((name) => /^(forward|backward|decode|cache)\/[a-z0-9-]+\/[a-z]+\/(f32|bf16|f16)\/cuda$/.test(name)),
    listed.stdout,
  );
  for (const width of [64, 128, 256]) {
    for (const [rows, mask] of [
      ['512', 'full'],
      ['16k', 'causal'],
    ]) {
      assert.ok(names.includes(`forward/d${width}-${rows}/${mask}/bf16/cuda`));
    }
  }
  const refused = [
    [['--device=rocm'], /^--device: expected cpu or cuda, got rocm\n$/],
    [['--device=cuda', '--threads=1'], /^--threads: expected none with --device=cuda, got one\n$/],
    [['--device=cuda', '--target=avx2'], /^--target: expected none with --device=cuda, got one\n$/],
    [['--device=cuda', '--processor=intel'], /^--processor: expected none with --device=cuda, got one\n$/],
    [['--processor=amd'], /^--processor: expected intel or other, got amd\n$/],
    [['--device=cuda', '--report'], /^--report: expected none with --device=cuda, got one\n$/],
    [['--device=cuda', '--schedule=8'], /^--schedule: expected none with --device=cuda, got one\n$/],
  ];
  for (const [args, message] of refused) {
    const { status, stdout, stderr } = multiheadBench(...args);
    assert.equal(status, 2, args.join(' '));
    assert.equal(stdout, '');
    assert.match(stderr, message);
  }
});

test('multihead-bench: without CUDA or a GPU, cases on a GPU are refused in one line', (context) => {
  const { status, stdout, stderr } = multiheadBench('--device=cuda', '--benchmark_filter=^forward/tiny/causal/f32/');
  if (status === 0) return context.skip('there is a GPU');
  assert.equal(status, 2);
  assert.equal(stdout, '');
  assert.match(stderr, /^--device=cuda: device: expected .*, got .*\n$/);
});

test('multihead-bench: numbers of threads', () => {
  const names = (...args) =>
    multiheadBench(...args, '--benchmark_list_tests')
      .stdout.trim()
      .split('\n');
  assert.deepEqual(new Set(names('--threads=1').map((name) => name.split('/').at(-1))), new Set(['threads:1']));
  for (const option of ['--threads', '--schedule']) {
    for (const list of ['0', 'x', '1,', '', '1.5', '99999']) {
      const { status, stdout, stderr } = multiheadBench(`${option}=${list}`);
      assert.equal(status, 2, `${option}=${list}`);
      assert.equal(stdout, '');
      assert.match(stderr, new RegExp(`${option}: expected numbers from 1 to \\d+, separated by commas, got ${list}`));
    }
  }
});

test('multihead-bench: the simulated schedule of many cores', () => {
  const filter = '--benchmark_filter=(forward|backward)/(gpt2-1k|packed-256)/causal/f32';
  const { status, stdout } = multiheadBench('--schedule=1,8', filter);
  assert.equal(status, 0);
  const [head, ...rows] = stdout.trim().split('\n');
  assert.match(head, /^case .* 1 cores: jobs speed-up  idle measured .* 8 cores: jobs speed-up  idle$/);
  assert.equal(rows.length, 4, stdout);
  for (const row of rows) {
    const [jobs, speedUp, idle] = row
      .split('|')
      .at(-1)
      .trim()
      .split(/\s+/)
      .map((text) => parseFloat(text));
    assert.ok(jobs >= 24 && speedUp > 1 && speedUp < 16 && idle >= 0 && idle < 100, row);
  }
  assert.equal(multiheadBench('--schedule=8', '--benchmark_filter=nothing').status, 2);
  assert.match(multiheadBench('--schedule=8', '--benchmark_filter=(').stderr, /--benchmark_filter: /);
});

test('cases: the package measures a part of the native ones, under the same names', () => {
  const native = multiheadBench('--threads=1', '--benchmark_list_tests').stdout.trim().split('\n');
  assert.equal(new Set(native).size, native.length);
  const ours = CASES.map(({ name }) => name);
  assert.deepEqual(native.slice(0, ours.length), ours);
  const alone = /^linear\/|-bnhd\/|\/packed-|\/bf16-precision\//;
  for (const name of native.slice(ours.length)) assert.match(name, alone);
});

test('cases: chosen by a pattern', () => {
  assert.deepEqual(
    chosenCases('forward/tiny/.*/f32').map(({ mask }) => mask),
    ['causal', 'full'],
  );
  assert.equal(chosenCases('').length, CASES.length);
  assert.equal(caseOf('forward/tiny/full/f32/threads:8').shape.heads, 4);
  assert.equal(caseOf('forward/none/full/f32/threads:8'), null);
});

test('inputs: numbers in [-1, 1), and the visible pairs of masks', () => {
  const values = randomFloats(1000, 1);
  assert.ok(values.every((value) => value >= -1 && value < 1));
  assert.equal(values[0], Math.fround((1664525 + 1013904223) / 2 ** 31 - 1));
  assert.equal(visiblePairs({ queries: 4, keys: 8 }, 'full'), 32);
  assert.equal(visiblePairs({ queries: 4, keys: 8 }, 'lengths'), 24);
  assert.equal(visiblePairs({ queries: 200, keys: 200 }, 'window'), (128 * 129) / 2 + 72 * 129);
  assert.equal(visiblePairs({ queries: 10, keys: 1152 }, 'blocks-1of3'), 10 * 384);
  assert.equal(operationsOf(caseOf('forward/tiny/causal/f32/threads:1')), (4 * 4 * 32 * 32 * 16) / 2);
});

test('results: valid and invalid documents', () => {
  assert.deepEqual(complaintsOf(document), []);
  const broken = structuredClone(document);
  broken.runs[0].benchmarks[0].peers.eigen.speed = 1;
  broken.runs[0].machine.speed = 1;
  delete broken.runs[0].benchmarks[1].us;
  assert.deepEqual(complaintsOf(broken), [
    'machine: speed is unknown',
    'forward/tiny/full/f32/threads:1, eigen: speed is unknown',
    'decode/a/full/f32/threads:2: us is missing',
  ]);
  assert.deepEqual(complaintsOf({}), ['runs: expected a list']);
});

test('multihead-bench --report: a table, and the same results as a document', () => {
  const folder = mkdtempSync(join(tmpdir(), 'multihead-bench-'));
  try {
    const file = join(folder, 'report.json');
    const only = ['--benchmark_filter=forward/tiny/causal/f32', '--benchmark_min_time=0.001'];
    const { status, stdout, stderr } = multiheadBench(`--report=${file}`, '--threads=1', ...only);
    assert.equal(status, 0, stderr);
    assert.match(stdout, /^cpu: .*\nname +us +GFLOPS.*\nforward\/tiny\/causal\/f32\/threads:1 .* eigen [\d.]+\n$/ms);
    const written = JSON.parse(readFileSync(file, 'utf8'));
    assert.deepEqual(complaintsOf(written), []);
    const [{ machine: here, benchmarks }] = written.runs;
    assert.equal(here.runner, 'native');
    assert.ok(here.fma_peak > 0 && here.read_stream > 0 && here.version, JSON.stringify(here));
    assert.deepEqual(
      benchmarks.map(({ name }) => name),
      ['forward/tiny/causal/f32/threads:1'],
    );
    assert.ok(markdown(written).includes('`forward/tiny/causal/f32`'));
    const lost = multiheadBench('--report=/no/such/file', '--alone', '--threads=1', ...only);
    assert.equal(lost.status, 3);
    assert.match(lost.stderr, /--report: cannot write \/no\/such\/file\n$/);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('cases of a report are cases of the package, and multihead-bench has them', () => {
  const names = reportCases().map(({ name }) => name);
  assert.ok(names.length >= 10);
  const list = JSON.parse(readFileSync(new URL('../../bindings/bench/cases.json', import.meta.url), 'utf8')).report;
  assert.deepEqual(list.map((name) => `${name}/threads:1`).sort(), [...names].sort());
  const native = multiheadBench('--report', '--threads=1', '--benchmark_list_tests').stdout.trim().split('\n');
  assert.deepEqual(native, names);
});

test('text: columns are aligned with their titles, and no message is lost', () => {
  const line = row(forward);
  assert.equal(header().indexOf('GFLOPS') + 'GFLOPS'.length, line.indexOf('32.0') + '32.0'.length);
  assert.match(line, /eigen 2\.00×, other: out of <range>$/);
  assert.match(row({ ...forward, peers: { eigen: { ...forward.peers.eigen, diff: 0.5 } } }), /DIFFERS BY 5\.0e-1/);
  assert.match(row({ name: 'a', peers: {}, message: 'no memory' }), /no memory$/);
  assert.match(machineLine(machine), /^native AVX2: A & B, 2 threads; FMA peak 100\.0 GFLOP\/s a thread/);
});

test('Markdown: a row for each benchmark, a column for each number of threads', () => {
  const text = markdown(document);
  assert.match(text, /\| benchmark \| native AVX2, 1 thread \| native AVX2, 2 threads \|/);
  assert.match(text, /\| `forward\/tiny\/full\/f32` \| 32 \(32 %\) \| – \|/);
  assert.match(text, /\| `decode\/a\/full\/f32` \| – \| 15\.0 GB\/s \(50 %\) \|/);
  assert.match(text, /\| `start\/multihead` \| 43 ms \(40 to 56\) \| – \|/);
  assert.match(text, /\| `forward\/tiny\/full\/f32\/threads:1` \| 8\.25 \| 16\.5 \(2\.00×\) \| out of <range> \|/);
});

test('chart: round ticks', () => {
  assert.deepEqual(ticks(117.4), [0, 50, 100, 150]);
  assert.deepEqual(ticks(100), [0, 20, 40, 60, 80, 100]);
  assert.deepEqual(ticks(0.3), [0, 0.1, 0.2, 0.3]);
});

test('chart: well-formed, with every bar to scale, and every name and limit', () => {
  const svg = chart(document);
  const open = [];
  for (const [, closing, name, selfClosing] of svg.matchAll(/<(\/?)([a-z]+)[^>]*?(\/?)>/g)) {
    if (closing) assert.equal(open.pop(), name);
    else if (!selfClosing) open.push(name);
  }
  assert.deepEqual(open, []);
  for (const words of ['forward/tiny/full/f32', 'decode/a/full/f32', 'FMA peak 100', 'read stream 30', 'GFLOP/s', 'GB/s of keys', 'eigen']) {
    assert.ok(svg.includes(words), words);
  }
  assert.ok(chart({ runs: [{ machine: { ...machine, simd: '<&">' }, benchmarks: [forward] }] }).includes('&lt;&amp;&quot;&gt;'));
  const widths = [...svg.matchAll(/<rect x="250" y="\d+" width="([\d.]+)"/g)].map(([, width]) => Number(width));
  assert.ok(Math.abs(widths[0] / widths[1] - 2) < 0.01, `${widths}`); // multihead, and a peer that takes twice as long
});

test('ONNX: bytes as protobuf writes them, and models with inputs of the right shapes', () => {
  const nodes = [{ op: 'Neg', inputs: ['x'], outputs: ['y'] }];
  const model = onnxModel({ nodes, inputs: [{ name: 'x', shape: [300] }], outputs: [{ name: 'y' }] });
  // ir_version 10, producer "multihead", then the graph
  assert.deepEqual([...model.subarray(0, 5)], [0x08, 10, 0x12, 9, 'm'.charCodeAt(0)]);
  assert.ok(Buffer.from(model).includes(Buffer.from([0x0a, 3, 0x08, 0xac, 0x02]))); // a dimension of 300
  assert.deepEqual([...swapMiddle(Float32Array.of(1, 2, 3, 4, 5, 6), [1, 3, 2, 1])], [1, 3, 5, 2, 4, 6]);
  assert.deepEqual(onnxWays(caseOf('cache/llama3-kv8k/full/int8/threads:1')), []);
  const ways = onnxWays(caseOf('forward/tiny/causal/f32/threads:1'));
  assert.deepEqual(
    ways.map(({ way }) => way),
    ['Attention', 'MatMul', 'MultiHeadAttention', 'GroupQueryAttention'],
  );
  for (const { feeds, model: bytes } of ways) {
    assert.ok(bytes().length > 50);
    for (const { shape, data } of Object.values(feeds))
      assert.equal(
        data.length,
        shape.reduce((a, b) => a * b, 1),
      );
  }
});

test('a peer that fails is recorded with its message; one without the operation is left out', async () => {
  const { load } = await import('../../bindings/dist/index.js');
  const mh = await load({ simd: 'simd128' });
  const limits = { fmaPeak: 1e9, readStream: 1e9, evictCaches: () => {} };
  const peers = {
    same: async ({ shape }) => {
      const [q] = inputsOf(shape);
      return { run: () => {}, output: () => new Float32Array(q.data.length), note: 'zeros' };
    },
    failing: async () => {
      throw new Error('invalid array length\nat …');
    },
    other: async () => null,
  };
  const result = await measureCase(mh, caseOf('forward/tiny/full/f32/threads:1'), limits, peers);
  assert.deepEqual(Object.keys(result.peers), ['same', 'failing']);
  assert.deepEqual(result.peers.failing, { message: 'invalid array length' });
  assert.ok(result.peers.same.diff > 0.1, 'zeros differ');
  assert.equal(result.peers.same.note, 'zeros');
  assert.deepEqual(complaintsOf({ runs: [{ machine, benchmarks: [result] }] }), []);
  assert.equal(largestDifference(Float32Array.of(1, NaN), Float32Array.of(1, NaN)), Infinity);
  assert.equal(mh.memory().live, 0);
});

test('multihead-bench and the package: the same format, small errors, the same outputs', async () => {
  const native = await gathered(nativeRun({ filter: 'tiny' }));
  const wasm = await gathered(wasmRun({ simd: 'relaxed', filter: 'tiny' }));
  assert.deepEqual(complaintsOf({ runs: [native, wasm] }), []);
  for (const { name, err, peers } of [...native.benchmarks, ...wasm.benchmarks]) {
    assert.ok(err < 2e-6, `${name}: ${err}`);
    if (peers.eigen) assert.ok(peers.eigen.diff < 4e-6, `${name}: ${peers.eigen.diff} from Eigen`);
  }
  assert.ok(native.benchmarks.some(({ peers }) => peers.eigen));

  const folder = mkdtempSync(join(tmpdir(), 'multihead-bench-'));
  try {
    multiheadBench('--alone', '--benchmark_filter=tiny/full/f32/threads:1$', '--benchmark_min_time=0.001', `--save=${folder}`);
    const bytes = readFileSync(join(folder, 'forward-tiny-full-f32-threads:1.f32'));
    const theirs = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
    const { load } = await import('../../bindings/dist/index.js');
    const mh = await load({ simd: 'simd128' });
    const { out } = mh.attention(...inputsOf(caseOf('forward/tiny/full/f32/threads:1').shape));
    assert.ok(largestDifference(out.data, theirs) < 2e-6);
    out.dispose();
  } finally {
    rmSync(folder, { recursive: true });
  }
});
