// The package's attention in Node, at the shapes of multihead-bench and under the same names:
//
//   node bindings/bench.mjs [--simd=relaxed|simd128|both] [--filter=REGEX] [--json=FILE]
//
// GFLOPS counts ideal operations, 4 B H N_q N_k d, half of that when causal; pct_peak is of the 128-bit FMA limit and
// pct_stream of the read stream, both measured in this run. Times are medians; `cold` is the very first call, which
// runs in the engine's baseline compiler.
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const SHAPES = [
  {
    op: 'forward',
    name: 'tiny',
    batch: 1,
    heads: 4,
    kvHeads: 4,
    queries: 32,
    keys: 32,
    width: 16,
    masks: ['causal', 'full'],
  },
  {
    op: 'forward',
    name: 'gpt2-1k',
    batch: 1,
    heads: 12,
    kvHeads: 12,
    queries: 1024,
    keys: 1024,
    width: 64,
    masks: ['causal', 'full'],
  },
  {
    op: 'forward',
    name: 'bert',
    batch: 8,
    heads: 12,
    kvHeads: 12,
    queries: 128,
    keys: 128,
    width: 64,
    masks: ['full'],
  },
  {
    op: 'forward',
    name: 'vit',
    batch: 8,
    heads: 12,
    kvHeads: 12,
    queries: 197,
    keys: 197,
    width: 64,
    masks: ['full'],
  },
  {
    op: 'forward',
    name: 'llama3-2k',
    batch: 1,
    heads: 32,
    kvHeads: 8,
    queries: 2048,
    keys: 2048,
    width: 128,
    masks: ['causal'],
  },
  {
    op: 'forward',
    name: 'long-8k',
    batch: 1,
    heads: 4,
    kvHeads: 4,
    queries: 8192,
    keys: 8192,
    width: 64,
    masks: ['causal'],
  },
  {
    op: 'decode',
    name: 'llama3-kv8k',
    batch: 1,
    heads: 32,
    kvHeads: 8,
    queries: 1,
    keys: 8192,
    width: 128,
    masks: ['full'],
  },
];
const LEAST_SECONDS = 0.5;
const LEAST_CALLS = 5;
const RELAXED_FLAG = '--experimental-wasm-relaxed-simd';

const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

function randomTensor(mh, shape, seed) {
  const data = new Float32Array(shape.reduce((a, b) => a * b));
  let state = seed;
  for (let i = 0; i < data.length; ++i) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    data[i] = state / 2 ** 31 - 1;
  }
  return mh.tensor(shape, data);
}

/** The last head's middle and last rows against float64. */
function errorOnSample(shape, causal, q, k, v, out) {
  const { heads, kvHeads, queries, keys, width } = shape;
  let largest = 0;
  for (const row of new Set([queries >> 1, queries - 1])) {
    const query = ((heads - 1) * queries + row) * width;
    const first = (kvHeads - 1) * keys * width;
    const visible = causal ? row + 1 + keys - queries : keys;
    const scores = Array.from({ length: visible }, (_, j) => {
      let dot = 0;
      for (let c = 0; c < width; ++c) dot += q.data[query + c] * k.data[first + j * width + c];
      return dot / Math.sqrt(width);
    });
    const maximum = scores.reduce((a, b) => Math.max(a, b));
    const weights = scores.map((score) => Math.exp(score - maximum));
    const sum = weights.reduce((a, b) => a + b);
    for (let c = 0; c < width; ++c) {
      let value = 0;
      for (let j = 0; j < visible; ++j) value += weights[j] * v.data[first + j * width + c];
      largest = Math.max(largest, Math.abs(value / sum - out.data[query + c]));
    }
  }
  return largest;
}

function time(call) {
  const timed = () => {
    const start = performance.now();
    call();
    return (performance.now() - start) / 1000;
  };
  const cold = timed();
  const warmUntil = performance.now() + 200;
  do timed();
  while (performance.now() < warmUntil);
  const seconds = [];
  for (let sum = 0; sum < LEAST_SECONDS || seconds.length < LEAST_CALLS; sum += seconds.at(-1)) seconds.push(timed());
  return { cold, warm: median(seconds) };
}

function measure(mh, shape, mask, machine) {
  const { op, name, batch, heads, kvHeads, queries, keys, width } = shape;
  const causal = mask === 'causal';
  return mh.scope(() => {
    // The oracle looks at the first batch entry alone.
    const q = randomTensor(mh, [batch, heads, queries, width], 1);
    const k = randomTensor(mh, [batch, kvHeads, keys, width], 2);
    const v = randomTensor(mh, [batch, kvHeads, keys, width], 3);
    const out = mh.tensor([batch, heads, queries, width]);
    const { cold, warm } = time(() => mh.attention(q, k, v, { causal: causal && 'bottomRight', out }));
    const operations = 4 * batch * heads * queries * keys * width * (causal ? 0.5 : 1);
    const bytes = 2 * batch * kvHeads * keys * width * 4;
    const result = {
      name: `${op}/${name}/${mask}/f32/threads:1`,
      us: warm * 1e6,
      cold_us: cold * 1e6,
      GFLOPS: operations / warm / 1e9,
      pct_peak: (100 * operations) / warm / machine.fmaPeak,
      err: errorOnSample(shape, causal, q, k, v, out),
    };
    if (queries > 1) return result;
    return {
      ...result,
      GBps: bytes / warm / 1e9,
      pct_stream: (100 * bytes) / warm / machine.readStream,
    };
  });
}

async function measureMachine() {
  const preset = process.execArgv.includes(RELAXED_FLAG) || hasRelaxed() ? 'wasm-relaxed' : 'wasm-simd';
  const { default: load } = await import(`../build/${preset}/native/multihead-peak.mjs`);
  const module = await load();
  return { preset, fmaPeak: module.measureFmaPeak(), readStream: module.measureReadStream() };
}

const hasRelaxed = () => parseInt(process.versions.node, 10) >= 22;

async function benchmark(simd, { filter, json }) {
  const { load } = await import('./dist/index.js');
  const mh = await load({ simd });
  const machine = await measureMachine();
  console.log(
    `wasm ${mh.backend.simd}, Node ${process.versions.node}; FMA peak ${(machine.fmaPeak / 1e9).toFixed(1)} GFLOP/s, ` +
      `read stream ${(machine.readStream / 1e9).toFixed(1)} GB/s (${machine.preset})`,
  );
  const results = [];
  for (const shape of SHAPES) {
    for (const mask of shape.masks) {
      if (!new RegExp(filter).test(`${shape.op}/${shape.name}/${mask}/f32/threads:1`)) continue;
      const result = measure(mh, shape, mask, machine);
      results.push(result);
      const { name, us, cold_us, GFLOPS, pct_peak, err, GBps, pct_stream } = result;
      console.log(
        `${name.padEnd(42)} ${us.toFixed(1).padStart(11)} us  cold ${cold_us.toFixed(0).padStart(8)} us  ` +
          `GFLOPS=${GFLOPS.toFixed(1)} pct_peak=${pct_peak.toFixed(1)} err=${err.toExponential(1)}` +
          (GBps ? ` GBps=${GBps.toFixed(1)} pct_stream=${pct_stream.toFixed(1)}` : ''),
      );
    }
  }
  if (json) writeFileSync(json, `${JSON.stringify({ backend: mh.backend, machine, benchmarks: results }, null, 2)}\n`);
}

function options(args) {
  const values = { simd: 'both', filter: '', json: '' };
  for (const arg of args) {
    const [, key, value] = /^--(\w+)=(.*)$/.exec(arg) ?? [];
    if (!Object.hasOwn(values, key ?? ''))
      throw new Error(`Unknown argument ${arg}; expected --simd=, --filter= or --json=`);
    values[key] = value;
  }
  if (!['both', 'relaxed', 'simd128'].includes(values.simd)) {
    throw new Error(`--simd: expected both, relaxed or simd128, got ${values.simd}`);
  }
  return values;
}

try {
  const chosen = options(process.argv.slice(2));
  const flags = hasRelaxed() || process.execArgv.includes(RELAXED_FLAG) ? [] : [RELAXED_FLAG];
  if (chosen.simd === 'both' || flags.length) {
    // Each build in a process of its own, so that neither warms the other's code.
    for (const simd of chosen.simd === 'both' ? ['relaxed', 'simd128'] : [chosen.simd]) {
      const json =
        chosen.json && chosen.simd === 'both'
          ? [`--json=${chosen.json.replace(/(\.json)?$/, `-${simd}.json`)}`]
          : chosen.json
            ? [`--json=${chosen.json}`]
            : [];
      const args = [
        ...process.execArgv,
        ...flags,
        fileURLToPath(import.meta.url),
        `--simd=${simd}`,
        `--filter=${chosen.filter}`,
        ...json,
      ];
      const { status } = spawnSync(process.execPath, args, { stdio: 'inherit' });
      if (status !== 0) process.exit(status ?? 1);
    }
  } else {
    await benchmark(chosen.simd, chosen);
  }
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
