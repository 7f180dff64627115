// Random calls of every option that the GPU has: the results beside float64, with poisoned outputs and guard words behind them.

import { encode, unitInLastPlace } from '../../bindings/test/half_reference.ts';
import { capturedPart, randomCase, stageTolerance, tolerance } from '../../bindings/test/random_case.ts';
import * as reference from '../../bindings/test/reference.ts';
import { checkGuard, difference, Worst } from './compare.mjs';

/** Keys that no query of any head sees become NaN and infinities in K and V: nothing of them may reach a result. */
function hideNaN(c, expected) {
  const [batch, heads, queries, keys] = c.extents;
  const kvHeads = c.k.plain.shape[1];
  if ((c.options.capture ?? []).some(({ stage }) => stage === 'raw' || stage === 'capped')) return false;
  let any = false;
  for (let b = 0; b < batch; b += 1) {
    for (let j = 0; j < keys; j += 1) {
      let seen = false;
      for (let h = 0; h < heads; h += 1)
        for (let i = 0; i < queries; i += 1) seen ||= expected.masked[((b * heads + h) * queries + i) * keys + j] !== -Infinity;
      if (seen) continue;
      any = true;
      for (const { given } of [c.k, c.v]) {
        const width = given.shape[3];
        const values = j % 2 ? [NaN, Infinity] : [-Infinity, NaN];
        const stored = given.dtype === undefined ? values : values.map((value) => encode(value, given.dtype));
        for (let g = 0; g < kvHeads; g += 1)
          for (let d = 0; d < width; d += 1) given.data[((b * kvHeads + g) * keys + j) * width + d] = stored[d % 2];
      }
    }
  }
  return any;
}

/** Case `seed`: without dropout, which the GPU does not have. */
function gpuCase(seed) {
  const c = randomCase(seed);
  const { dropout: _, ...options } = c.options;
  options.return = ['lse', 'weights'];
  return { ...c, options };
}

async function runCase(on, seed, worst, count) {
  const { mh, gpu } = on;
  const c = gpuCase(seed);
  const { q, k, v, extents, options, outDtype, label } = c;
  const expected = reference.attention(q.plain, k.plain, v.plain, options);
  const allowed = tolerance(c.width, options, expected);
  if (hideNaN(c, expected)) count.hidden += 1;
  on.poison();
  await mh.scope(async () => {
    const result = gpu.attention(q.given, k.given, v.given, options);
    const cpu = mh.attention(q.given, k.given, v.given, options);
    const out = await result.out.toFloat32();
    const last = (at) => 1.5 * unitInLastPlace(expected.out[at], outDtype);
    // Half-precision results are compared within a last place of them.
    const error =
      outDtype === 'f32' ? difference(out, expected.out) : Math.max(0, ...Array.from(out, (x, at) => Math.abs(x - expected.out[at]) - last(at)));
    worst.of('out', error, allowed, label);
    worst.of('weights', difference(await result.weights.read(), expected.weights), allowed, label);
    worst.of('lse', difference(await result.lse.read(), expected.lse), 4 * allowed, label);
    if (outDtype === 'f32') worst.of("CPU's out", difference(cpu.out.toFloat32(), expected.out), Infinity, label);
    for (const [index, capture] of (options.capture ?? []).entries()) {
      const part = capturedPart(expected[capture.stage], extents, capture);
      const captured = result.captures[index];
      if (captured.shape.join() !== part.shape.join()) throw new Error(`capture ${index} has shape ${captured.shape}; ${label}`);
      worst.of(capture.stage, difference(await captured.read(), part.data), stageTolerance(capture.stage, allowed), label);
    }
    for (const [name, tensor] of Object.entries({ out: result.out, weights: result.weights, lse: result.lse, ...result.captures }))
      await checkGuard(on, tensor, `${name}, ${label}`);
  });
  if (mh.memory().gpu !== 0) throw new Error(`${mh.memory().gpu} bytes of the GPU are left; ${label}`);
}

const randomCalls = (kind, usual) => ({
  name: `random calls, ${kind}`,
  kind,
  thorough: kind !== 'all',
  async run(on, { quick, cases, seed }) {
    const worst = new Worst();
    const count = { hidden: 0 };
    const calls = cases ?? (quick ? 60 : usual);
    for (let at = 0; at < calls; at += 1) await runCase(on, seed + at, worst, count);
    return `${calls} calls (${count.hidden} with NaN in hidden keys): ${worst}`;
  },
});

export const randomCases = [randomCalls('all', 300), randomCalls('no subgroups', 150), randomCalls('default limits', 150)];
