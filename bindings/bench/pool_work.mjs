// Operations that a pool divides, measured alternately with several numbers of workers.

import { inputsOf, maskOptions } from './inputs.mjs';
import { largestDifference, median, peerRow, roundOf } from './measure.mjs';
import { onnxruntimeWithThreads } from './peers/onnxruntime_threads.mjs';
import { makeWork, operationsOf, stepModel } from './work.mjs';

/** True if a pool divides the work of a case. */
export const isPooled = ({ op, mask, dtype, shape }) =>
  (op === 'forward' && dtype === 'f32' && ['full', 'causal'].includes(mask) && shape.name !== 'tiny') || op === 'step';

const POOLED = { forward: attentionInPool, step: stepInPool };

function attentionInPool(pool, { shape, mask }) {
  // With shared memory, tensors that already lie there avoid two copies.
  const shared = pool.backend.exchange === 'shared memory';
  const stored = ({ shape: extents, data }) => {
    const own = shared ? new Float32Array(new SharedArrayBuffer(data.byteLength)) : new Float32Array(data.length);
    own.set(data);
    return { shape: extents, data: own };
  };
  const [q, k, v] = inputsOf(shape).map(stored);
  const out = stored({ shape: q.shape, data: new Float32Array(q.data.length) });
  const options = maskOptions(shape, mask);
  return { run: () => pool.attention(q, k, v, { ...options, out }), output: () => out.data };
}

async function stepInPool(pool, { shape }) {
  const { config, dict, capacity, before, token } = stepModel(shape);
  const model = await pool.transformer(config, { workers: 'all' });
  await model.loadStateDict(dict);
  const cache = await model.createCache({ capacity });
  await model.step(before, cache, { return: [] });
  let logits;
  return {
    run: async () => {
      ({ logits } = await model.step(token, cache));
      await cache.truncate(capacity - 1);
    },
    output: () => logits.data,
    dispose: () => model.dispose(),
  };
}

const ROUNDS = 4;
const ROUND_MILLISECONDS = 300;
/** Untimed calls of each round: threads that have slept share a core at first, until the system moves them. */
const UNTIMED = 4;

/** Measures the contenders alternately, and sets `seconds` per call of each. Some contenders are other processes. */
async function measureAlternately(contenders) {
  for (const contender of contenders) contender.samples = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    for (const { run, round: ofProcess, samples } of contenders) {
      samples.push(...(await (run ? roundOf(run, UNTIMED, ROUND_MILLISECONDS) : ofProcess(UNTIMED, ROUND_MILLISECONDS))));
    }
  }
  for (const contender of contenders) contender.seconds = median(contender.samples) / 1000;
}

/**
 * Returns a row for each pool: { workers, pool }. Its peers are a single thread without a pool, the first pool, and
 * onnxruntime-web with the same number of threads if `peersFolder` is given.
 */
export async function measurePools(mh, pools, which, machine, peersFolder) {
  return mh.scope(async () => {
    const local = { name: 'one thread', ...makeWork(mh, which) };
    const contenders = [local];
    for (const { workers, pool } of pools) {
      const work = await POOLED[which.op](pool, which);
      contenders.push({ workers, pool, ...work });
    }
    const onnxruntime = new Map();
    for (const { workers } of peersFolder ? pools : []) {
      const peer = await onnxruntimeWithThreads(peersFolder, which, workers).catch((error) => ({ message: error.message }));
      if (peer) onnxruntime.set(workers, peer);
    }
    await measureAlternately([...contenders, ...[...onnxruntime.values()].filter(({ message }) => !message)]);
    const operations = operationsOf(which);
    const [, first] = contenders;
    const differences = new Map();
    for (const [workers, { output }] of onnxruntime) {
      if (output) differences.set(workers, largestDifference(local.output(), await output()));
    }
    const rows = contenders.slice(1).map(({ pool, workers, seconds, output }) => {
      const diff = largestDifference(local.output(), output());
      const row = (peer) => peerRow({ seconds: peer.seconds, ours: seconds, operations, diff });
      const ort = onnxruntime.get(workers);
      const ofOrt = ort?.message ? ort : ort && { ...row(ort), diff: differences.get(workers), note: ort.note };
      const exchange = pool.backend.exchange.split(' ', 1)[0];
      return {
        name: which.name.replace(/^\w+/, `$&-${exchange}`).replace(/\d+$/, String(workers)),
        us: seconds * 1e6,
        GFLOPS: operations / seconds / 1e9,
        pct_peak: (100 * operations) / seconds / machine.fmaPeak / workers,
        ...(local.bytes && { GBps: local.bytes / seconds / 1e9 }),
        peers: {
          'one thread': row(local),
          ...(workers > 1 && { 'one worker': row(first) }),
          ...(ofOrt && { 'onnxruntime-web': ofOrt }),
        },
      };
    });
    for (const { dispose } of [...contenders, ...onnxruntime.values()]) await dispose?.();
    return rows;
  });
}
