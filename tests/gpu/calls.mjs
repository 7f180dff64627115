// Compares the other calls of a GPU with the same calls of the CPU, which other tests compare with float64. Also tries hostile values.

import { random } from '../../bindings/test/random.ts';
import { cumulative, filled, product, randomBias, randomMask, randomScoring, stored } from '../../bindings/test/random_case.ts';
import * as reference from '../../bindings/test/reference.ts';
import { checkGuard, difference, Worst } from './compare.mjs';

/** The bound between two f32 results of values in [-1, 1], whose scores are some tens at most. */
const BOUND = 2e-5;

/** Compares tensors of the GPU with tensors of the CPU. `guard`: the GPU's buffers held poison before the call. */
async function compare(on, worst, ofGpu, ofCpu, label, guard = true) {
  for (const [name, tensor] of Object.entries(ofCpu)) {
    if (Array.isArray(tensor)) await compare(on, worst, { ...ofGpu[name] }, { ...tensor }, label, guard);
    else {
      const got = ofGpu[name];
      if (got.shape.join() !== tensor.shape.join() || got.dtype !== tensor.dtype) throw new Error(`${name} is ${got.dtype} (${got.shape}); ${label}`);
      // A half may differ in its last place.
      const unit = { f16: 2 ** -10, bf16: 2 ** -7 }[tensor.dtype] ?? 0;
      worst.of(name, difference(await got.toFloat32(), tensor.toFloat32()), BOUND + unit, label);
      if (guard) await checkGuard(on, got, `${name}, ${label}`);
    }
  }
}

const test = (name, run, { kind = 'all', thorough = false } = {}) => ({
  name: `${name}, ${kind}`,
  kind,
  thorough,
  async run(on, options) {
    const worst = new Worst();
    await on.mh.scope(() => run(on, { ...options, r: random(options.seed), worst }));
    const { live, gpu } = on.mh.memory();
    if (live !== 0 || gpu !== 0) throw new Error(`${live} objects and ${gpu} bytes of the GPU are left`);
    return worst.toString();
  },
});

const packed = async (on, { quick, r, worst }) => {
  for (let round = 0; round < (quick ? 3 : 40); round += 1) {
    const kvHeads = r.int(1, 2);
    const heads = kvHeads * r.pick([1, 3]);
    const [width, valueDim, sequences] = [r.pick([2, 7, 16, 64]), r.pick([1, 5, 16, 64]), r.int(1, 5)];
    const [cuQ, cuK] = [cumulative(r, sequences), cumulative(r, sequences)];
    const dtype = r.pick(['f32', 'f16', 'bf16']);
    const tensor = (...shape) => stored(dtype, shape, r.floats(product(shape))).given;
    const inputs = [tensor(cuQ.at(-1), heads, width), tensor(cuK.at(-1), kvHeads, width), tensor(cuK.at(-1), kvHeads, valueDim)];
    const causal = r.pick([false, 'topLeft', 'bottomRight', { offset: 2 }]);
    const options = {
      ...{ causal, cuQ, cuK, return: ['lse'] },
      ...randomScoring(r, heads),
      ...(r.next() < 0.4 ? { window: { left: r.int(0, 8), ...(causal === false ? { align: 'bottomRight' } : {}) } } : {}),
      ...(r.next() < 0.3 ? { rope: { style: r.pick(['half', 'interleaved']), rotaryDim: 2 } } : {}),
      ...(r.next() < 0.3 ? { qkNorm: {} } : {}),
    };
    const label = `round ${round}: ${JSON.stringify({ ...options, cuQ: [...cuQ], cuK: [...cuK] })}, ${dtype} ${width} ${valueDim}`;
    on.poison();
    await on.mh.scope(() => compare(on, worst, on.gpu.attentionVarlen(...inputs, options), on.mh.attentionVarlen(...inputs, options), label));
  }
};

/** A cache of the GPU and one of the CPU get the same calls. */
const caches = async (on, { quick, r, worst }) => {
  for (const layout of ['contiguous', 'ring', 'paged']) {
    for (const dtype of quick ? ['f32', 'f16'] : ['f32', 'f16', 'bf16']) {
      const kvHeads = r.int(1, 2);
      const [batch, heads, headDim, valueDim] = [r.int(1, 2), kvHeads * r.pick([1, 2, 4]), r.pick([1, 7, 8, 64]), r.pick([1, 5, 8, 64])];
      const config = { batch, numKvHeads: kvHeads, headDim, valueDim, capacity: 40, layout, dtype, ...(layout === 'paged' ? { pageSize: 8 } : {}) };
      const label = JSON.stringify({ ...config, heads });
      on.poison();
      const pair = [on.gpu.cache(config), on.mh.createCache(config)];
      for (let step = 0; step < (quick ? 4 : 14); step += 1) {
        const count = r.pick([1, 1, 2, 9]);
        const tensor = (h, d) => ({ shape: [batch, h, count, d], data: r.floats(batch * h * count * d) });
        const [k, v] = [tensor(kvHeads, headDim), tensor(kvHeads, valueDim)];
        const room = (b) => (layout === 'ring' ? count : Math.min(count, 40 - pair[1].length(b)));
        const counts = Int32Array.from({ length: batch }, (_, b) => (r.next() < 0.3 ? r.int(0, room(b)) : room(b)));
        for (const cache of pair) cache.append(k, v, counts);
        if (r.next() < 0.2) for (const cache of pair) cache.truncate(cache.firstKept(0) + ((cache.length(0) - cache.firstKept(0)) >> 1), 0);
        const keys = Math.max(...Array.from({ length: batch }, (_, b) => pair[1].length(b)));
        const queries = r.pick([1, 1, count]);
        const options = {
          ...{ causal: r.pick([false, 'bottomRight']), return: ['lse', 'weights'] },
          ...randomScoring(r, heads),
          ...(r.next() < 0.3 ? { mask: randomMask(r, [1, 1, queries, keys]) } : {}),
          ...(r.next() < 0.3 ? { bias: randomBias(r, [1, heads, 1, keys]) } : {}),
          ...(r.next() < 0.3 ? { capture: [{ stage: r.pick(['masked', 'weights']) }] } : {}),
        };
        const q = { shape: [batch, heads, queries, headDim], data: r.floats(batch * heads * queries * headDim) };
        await on.mh.scope(() => {
          const [ofGpu, ofCpu] = pair.map((cache) => cache.attend(q, options));
          return compare(on, worst, ofGpu, ofCpu, `step ${step}, ${label}, ${JSON.stringify(options)}`, false);
        });
      }
      for (const cache of pair) cache.dispose();
    }
  }
};

const scores = async (on, { r, worst }) => {
  const [q, k] = [filled(r, 2, 4, 21, 24), filled(r, 2, 2, 37, 24)];
  for (const stage of ['raw', 'capped', 'masked', 'weights']) {
    const options = { stage, heads: [3, 1], rows: [4, 15], softcap: 3, causal: 'bottomRight', window: { left: 9 } };
    on.poison();
    const got = on.gpu.attentionScores(q, k, options);
    const [rows] = [...on.mh.scores(q, k, options)];
    if (got.shape.join() !== rows.shape.join()) throw new Error(`scores have shape (${got.shape})`);
    worst.of(stage, difference(await got.read(), rows.data), BOUND, stage);
    await checkGuard(on, got, stage);
    got.dispose();
  }
};

const rotations = async (on, { r, worst }) => {
  for (const [width, rope] of [
    [20, { style: 'half', rotaryDim: 12, base: 500_000 }],
    [64, { style: 'interleaved' }],
  ]) {
    const x = filled(r, 2, 3, 11, width);
    const positions = Int32Array.from({ length: 22 }, () => r.int(-20, 200_000));
    on.poison();
    await on.mh.scope(() => compare(on, worst, { out: on.gpu.rotate(x, positions, rope) }, { out: on.mh.rotate(x, positions, rope) }, rope.style));
  }
};

const products = async (on, { r, worst }) => {
  for (const [rows, width, outputs] of [
    [1, 36, 70],
    [5, 7, 3],
    [9, 0, 2],
    [1, 1, 1],
    [77, 64, 130],
  ]) {
    const [x, weight, bias] = [filled(r, rows, width), filled(r, outputs, width), filled(r, outputs)];
    for (const options of [{}, { bias }]) {
      on.poison();
      await on.mh.scope(() => compare(on, worst, { y: on.gpu.linear(x, weight, options) }, { y: on.mh.linear(x, weight, options) }, `${rows} rows`));
    }
  }
};

/** Tensors in one buffer of the caller with gaps between rows, (B, N, H, d) as frameworks have it, and an output in it. */
const wrapped = async (on, { r, worst }) => {
  const { gpu, mh } = on;
  const [batch, heads, rows, width] = [2, 3, 13, 20];
  const row = heads * width + 4;
  const shape = [batch, heads, rows, width];
  const strides = [rows * row, width, row, 1];
  for (const dtype of ['f32', 'f16']) {
    const bytes = dtype === 'f32' ? 4 : 2;
    on.poison();
    const length = Math.ceil((batch * rows * row * bytes) / 256) * 256;
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
    const buffer = gpu.device.createBuffer({ size: 3 * length, usage });
    const numbers = r.floats((3 * length) / bytes);
    const { given } = stored(dtype, [numbers.length], numbers);
    gpu.device.queue.writeBuffer(buffer, 0, given.data);
    const tensors = [0, 1, 2].map((at) => gpu.wrap(buffer, { dtype, shape, strides, offset: at * length }));
    const dense = await Promise.all(tensors.map(async (each) => ({ shape, dtype, data: await each.read() })));
    const options = { causal: true, alibi: true, return: ['lse', 'weights'] };
    const target = gpu.device.createBuffer({ size: 512 + product(shape) * 4, usage });
    gpu.device.queue.writeBuffer(target, 0, new Uint32Array(target.size / 4).fill(0x4b4b4b4b));
    const out = gpu.wrap(target, { shape, offset: 256 });
    const ofCpu = mh.attention(...(dtype === 'f32' ? dense.map(({ data }) => ({ shape, data })) : dense), options);
    const ofGpu = gpu.attention(...tensors, { ...options, out });
    if (ofGpu.out !== out) throw new Error('out is not the given tensor');
    await compare(on, worst, ofGpu, ofCpu, dtype);
    const words = new Uint32Array((await gpu.wrap(target, { shape: [64] }).read()).buffer);
    if (words.some((word) => word !== 0x4b4b4b4b)) throw new Error('words before the output were written');
    // Commands of the caller after submitted() see the result.
    await gpu.submitted();
    for (const each of [buffer, target]) each.destroy();
  }
};

/** Biases of the lowest floats, rows without keys, scores that overflow, infinities that a query sees. */
const hostile = async (on, { worst, r }) => {
  const [q, k, v] = [filled(r, 1, 2, 9, 8), filled(r, 1, 2, 35, 8), filled(r, 1, 2, 35, 8)];
  const lowest = { shape: [1, 1, 9, 35], data: new Float32Array(9 * 35).fill(-3.4028234e38) };
  const mixed = { shape: lowest.shape, data: lowest.data.map((x, at) => (at % 3 === 0 ? x : at % 3 === 1 ? -Infinity : -3.4e38)) };
  const nothing = { shape: [1, 1, 9, 35], data: Float32Array.from({ length: 9 * 35 }, (_, at) => (Math.floor(at / 35) % 2 ? -Infinity : 0)) };
  const cases = {
    lowest: { bias: lowest },
    mixed: { bias: mixed },
    nothing: { bias: nothing },
    sink: { bias: nothing, sinks: new Float32Array([2, -1e30]) },
    'no keys': { kvLengths: new Int32Array(1) },
  };
  cases['large sink'] = { sinks: new Float32Array([3e38, 90]) };
  for (const [name, options] of Object.entries(cases)) {
    const call = { ...options, return: ['lse', 'weights'], capture: [{ stage: 'masked' }] };
    on.poison();
    await on.mh.scope(async () => {
      const expected = reference.attention(q, k, v, options);
      const result = on.gpu.attention(q, k, v, call);
      for (const part of ['out', 'lse', 'weights']) worst.of(part, difference(await result[part].read(), expected[part]), 3e-6, `${name}: ${part}`);
      worst.of('masked', difference(await result.captures[0].read(), expected.masked), 3e-6, `${name}: masked`);
    });
  }
  // A NaN and an infinity that queries see reach exactly the rows that see them.
  for (const value of [NaN, Infinity]) {
    for (const where of ['k', 'v']) {
      const data = (where === 'k' ? k : v).data.slice();
      data[8 * 4 + 3] = value;
      const inputs = where === 'k' ? [q, { shape: k.shape, data }, v] : [q, k, { shape: v.shape, data }];
      const options = { causal: { offset: 0 }, return: ['lse', 'weights'] };
      await on.mh.scope(async () => {
        const result = on.gpu.attention(...inputs, options);
        const cpu = on.mh.attention(...inputs, options);
        const classes = (numbers) => Array.from(numbers, (x) => (Number.isFinite(x) ? 'f' : 'n')).join('');
        const [got, wanted] = [await result.out.read(), cpu.out.data].map(classes);
        if (got !== wanted) throw new Error(`${value} in ${where}: out is\n${got}, expected\n${wanted}`);
      });
    }
  }
};

/** Widths of other pipelines, and as many keys as several splits have. */
const wide =
  (width, keys) =>
  async (on, { r, worst }) => {
    for (const [queries, heads, kvHeads] of [
      [1, 4, 2],
      [33, 2, 1],
    ]) {
      const [q, k, v] = [filled(r, 1, heads, queries, width), filled(r, 1, kvHeads, keys, width), filled(r, 1, kvHeads, keys, width - 3)];
      on.poison();
      await on.mh.scope(() => {
        const options = { causal: 'bottomRight', return: ['lse', 'weights'] };
        return compare(on, worst, on.gpu.attention(q, k, v, options), on.mh.attention(q, k, v, options), `${queries} queries`);
      });
    }
  };

/** explain() lists dispatches. A lost device rejects read() of its tensors, and the next device works. */
const lost = async ({ mh }, { r }) => {
  const gpu = await mh.gpu();
  const x = filled(r, 1, 2, 5, 8);
  const { dispatches, scratch } = gpu.explain(x, x, x, { return: ['weights'] });
  if (dispatches.length === 0 || dispatches.some(({ kernel, groups }) => !kernel || groups.some((count) => count < 1)) || scratch < 0) {
    throw new Error(`explain gives ${JSON.stringify(dispatches)}`);
  }
  const { out } = gpu.attention(x, x, x);
  gpu.device.destroy();
  const error = await out.read().then(
    () => undefined,
    (why) => why,
  );
  if (error?.code !== 'E_GPU_LOST') throw new Error(`a lost device gives ${error}`);
  gpu.dispose();
  const again = await mh.gpu();
  const { out: other } = again.attention(x, x, x);
  if ((await other.read()).length !== 80) throw new Error('the next device does not work');
  again.dispose();
};

/** A worker opens a GPU, too, and sends its result. */
const inWorker = async ({ mh }, { r, worst }) => {
  const x = filled(r, 1, 2, 5, 8);
  const code = `import { load } from '${location.origin}/dist/index.js';
    onmessage = async ({ data: x }) => {
      const gpu = await (await load()).gpu();
      postMessage(await gpu.attention(x, x, x, { causal: true }).out.read());
    };
    postMessage('ready');`;
  const worker = new Worker(URL.createObjectURL(new Blob([code], { type: 'text/javascript' })), { type: 'module' });
  const next = () =>
    new Promise((resolve, reject) =>
      Object.assign(worker, { onmessage: ({ data }) => resolve(data), onerror: ({ message }) => reject(new Error(message)) }),
    );
  await next();
  worker.postMessage(x);
  const out = await next();
  worker.terminate();
  using cpu = mh.attention(x, x, x, { causal: true });
  worst.of('out', difference(out, cpu.out.data), BOUND, 'in a worker');
};

const thorough = true;
export const otherCalls = [
  test('packed sequences', packed),
  test('caches', caches),
  test('scores', scores),
  test('rotation', rotations),
  test('linear', products, { thorough: true }),
  test('tensors in buffers of the caller', wrapped),
  test('values that hurt', hostile),
  test('values that hurt', hostile, { kind: 'no subgroups', thorough }),
  test('caches', caches, { kind: 'default limits', thorough }),
  test('1300 keys', wide(64, 1300)),
  test('a lost device', lost, { thorough }),
  test('a worker', inWorker, { thorough }),
  test('heads 128 wide', wide(128, 300), { thorough }),
  test('heads 256 wide', wide(256, 300), { thorough }),
  test('heads 256 wide', wide(256, 70), { kind: 'default limits', thorough }),
];
