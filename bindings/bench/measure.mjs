// Times a case in WebAssembly, in the same way in Node and in browsers.
//
// Browser clocks tick in steps of 5 µs to 1 ms, so calls are timed in batches, and a result is the median of batches.
// `cold` is the first call, after the caches were evicted; it runs in the engine's baseline compiler.

import { machineOf } from './limits.mjs';
import { makeWork, operationsOf } from './work.mjs';

const BATCH_MILLISECONDS = 5;
const LEAST_MILLISECONDS = 400;
const LEAST_BATCHES = 5;
const MOST_MILLISECONDS_FOR_LEAST = 1000; // for a peer that takes seconds, one call per round is enough
const WARM_UP_MILLISECONDS = 150;
const ROUNDS = 4;
const SLOW_MILLISECONDS = 2000; // contenders slower than this take part in only two rounds

export const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

const now = () => performance.now();

/** Milliseconds of `count` calls; awaits each call of an asynchronous contender. */
async function timeBatch({ run, isAsync }, count) {
  const start = now();
  if (isAsync) for (let i = 0; i < count; i += 1) await run();
  else for (let i = 0; i < count; i += 1) run();
  return now() - start;
}

/** Runs long enough that the engine uses optimized code, and finds how many calls make a batch. */
async function warmUp(contender) {
  let calls = 1;
  for (const start = now(); ;) {
    const milliseconds = await timeBatch(contender, calls);
    if (milliseconds < BATCH_MILLISECONDS / 2) calls *= 2;
    else if (now() - start > WARM_UP_MILLISECONDS) return Math.max(1, Math.round((calls * BATCH_MILLISECONDS) / milliseconds));
  }
}

async function sampleFor(contender, milliseconds, leastBatches) {
  const isEnough = (spent, batches) => batches >= leastBatches || spent > MOST_MILLISECONDS_FOR_LEAST;
  for (let spent = 0, batches = 0; spent < milliseconds || !isEnough(spent, batches); batches += 1) {
    const elapsed = await timeBatch(contender, contender.calls);
    contender.samples.push(elapsed / contender.calls);
    spent += elapsed;
  }
}

/** If a peer fails, its message becomes its result; if multihead fails, the error is thrown. */
async function guarded(contender, work) {
  if (contender.message) return;
  try {
    await work();
  } catch (error) {
    if (!contender.name) throw error;
    contender.message = firstLine(error);
  }
}

/** Measures the contenders alternately: each gets `seconds` per call, or a `message`. */
async function measureAlternately(contenders) {
  for (const contender of contenders) {
    contender.samples = [];
    await guarded(contender, async () => (contender.calls = await warmUp(contender)));
  }
  const rounds = contenders.length > 1 ? ROUNDS : 1;
  const leastBatches = Math.ceil(LEAST_BATCHES / rounds);
  for (let round = 0; round < rounds; round += 1) {
    for (const contender of contenders) {
      if (round >= 2 && median(contender.samples) > SLOW_MILLISECONDS) continue;
      await guarded(contender, () => sampleFor(contender, LEAST_MILLISECONDS / rounds, leastBatches));
    }
  }
  for (const contender of contenders) contender.seconds = median(contender.samples) / 1000;
}

/** Milliseconds of the calls of one round, at least `least` of them, after `untimed` calls. */
export async function roundOf(run, untimed, milliseconds, least = 1) {
  const samples = [];
  for (let call = 0; call < untimed; call += 1) await run();
  for (const start = now(); samples.length < least || now() - start < milliseconds;) samples.push(await timeBatch({ run, isAsync: true }, 1));
  return samples;
}

/** The largest difference; Infinity if lengths differ or a number is NaN. */
export function largestDifference(a, b) {
  if (a.length !== b.length) return Infinity;
  let largest = 0;
  for (let i = 0; i < a.length; i += 1) {
    const difference = Math.abs(a[i] - b[i]);
    if (Number.isNaN(difference)) return Infinity;
    if (difference > largest) largest = difference;
  }
  return largest;
}

/** Prepares a peer; returns the peer, or the message of its failure. */
async function tried(name, make) {
  try {
    const peer = await make();
    if (!peer) return null; // the peer does not offer this operation
    await peer.run(); // a peer that fails does so here, not during the measurement
    return { name, ...peer };
  } catch (error) {
    return { name, message: firstLine(error) };
  }
}

export const firstLine = (error) => String(error?.message ?? error).split('\n', 1)[0];

/** Returns a peer's part of the results. `ratio` is its time divided by multihead's. */
export function peerRow({ seconds, ours, operations, diff, note }) {
  return { us: seconds * 1e6, GFLOPS: operations / seconds / 1e9, ratio: seconds / ours, diff, ...(note && { note }) };
}

/**
 * One row of the results.
 * @param {object} mh the object that load() returned
 * @param {object} which one of CASES
 * @param {{ fmaPeak: number, readStream: number, evictCaches: () => void }} machine
 * @param {Record<string, (which: object) => Promise<{ run, output, isAsync?, note?, dispose? } | null>>} [peers]
 */
export async function measureCase(mh, which, machine, peers = {}) {
  return await mh.scope(async () => {
    const work = makeWork(mh, which);
    machine.evictCaches();
    const cold = (await timeBatch(work, 1)) / 1000;
    const made = [];
    for (const [name, make] of Object.entries(peers)) made.push(await tried(name, () => make(which)));
    const ours = { ...work };
    const theirs = made.filter(Boolean);
    await measureAlternately([ours, ...theirs]);
    const warm = ours.seconds;
    const operations = operationsOf(which);
    const compared = {};
    for (const { name, message, seconds, output, note, dispose } of theirs) {
      const diff = message ? 0 : largestDifference(work.output(), await output());
      compared[name] = message ? { message } : peerRow({ seconds, ours: warm, operations, diff, note });
      await dispose?.();
    }
    return {
      name: which.name,
      us: warm * 1e6,
      cold_us: cold * 1e6,
      GFLOPS: operations / warm / 1e9,
      pct_peak: (100 * operations) / warm / machine.fmaPeak,
      ...(work.bytes && {
        GBps: work.bytes / warm / 1e9,
        pct_stream: (100 * work.bytes) / warm / machine.readStream,
      }),
      err: work.error(),
      peers: compared,
    };
  });
}

/** Yields { machine }, then { benchmark } of each case. */
export async function* eventsOf(mh, cases, peers) {
  const { limits, machine } = await machineOf(mh);
  yield { machine };
  for (const which of cases) yield { benchmark: await measureCase(mh, which, limits, peers) };
}
