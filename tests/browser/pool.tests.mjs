// multihead/pool in a browser: with messages, with shared memory, and where workers are forbidden.

import assert from 'node:assert/strict';
import { lostWorkers, patientPage } from './harness.mjs';
import { isolated, onPackagePage } from './package_page.mjs';

/**
 * Runs in the page: compares a pool with one thread. The workers come from a Trusted Types policy, or from the package.
 */
async function compare(withPolicy) {
  const { createPool } = await import('/pool.js');
  const { load } = await import('/index.js');
  const mh = await load();
  const same = (a, b) => a.length === b.length && a.every((value, at) => value === b[at]);
  const numbers = (count, seed) => Float32Array.from({ length: count }, (_, at) => Math.sin(at * 12.9898 + seed));
  const tensor = (seed) => ({ shape: [1, 3, 200, 32], data: numbers(3 * 200 * 32, seed) });
  const [q, k, v] = [tensor(1), tensor(2), tensor(3)];
  const policy = withPolicy ? globalThis.trustedTypes?.createPolicy('pool', { createScriptURL: (address) => address }) : undefined;
  const worker = policy && (() => new Worker(policy.createScriptURL('/pool_worker.js')));
  const pool = await createPool({ workers: 2, leastWork: 1, worker });
  const expected = mh.attention(q, k, v, { causal: 'topLeft' }).out.data;
  const parts = [];
  const actual = await pool.attention(q, k, v, { causal: 'topLeft', progress: (_, total) => parts.push(total) });
  const copies = [q, k, v].map(({ shape, data }) => ({ shape, data: data.slice() }));
  const { out, lse, operands } = await pool.attention(...copies, { causal: 'topLeft', return: ['lse'], transfer: true });
  const taken = copies.filter(({ data }) => data.length === 0).length;
  // Float16Array exists in browsers since 2025, in Node only since version 24.
  const halves = [q, k, v].map(({ shape, data }) => ({ shape, data: new Float16Array(data) }));
  const bits = halves.map(({ shape, data }) => ({ shape, data: new Uint16Array(data.buffer), dtype: 'f16' }));
  const ofBits = mh.attention(...bits).out.toFloat32();
  const half = mh.tensor(halves[0].data, [3, 200 * 32]);
  const isHalf = half.dtype === 'f16' && same(half.data, bits[0].data);
  const float16 = [mh.attention(...halves), await pool.attention(...halves), await pool.attention(...halves, { transfer: true })];
  const inputs = { q, k, v, out, lse, dOut: tensor(4) };
  const wantedGradients = mh.attentionBackward(inputs, { causal: 'topLeft' });
  const gradients = await pool.attentionBackward(inputs, { causal: 'topLeft' });
  const config = { embedDim: 128, numHeads: 4, numLayers: 1, vocabSize: 5000, maxPositions: 64 };
  const [local, remote] = [mh.transformer(config), await pool.transformer(config, { workers: 'all' })];
  local.initialize({ seed: 1 });
  await remote.initialize({ seed: 1 });
  const tokens = Int32Array.from({ length: 60 }, (_, at) => at);
  const wanted = local.forward(tokens).logits.data;
  const { logits } = await remote.forward(tokens);
  const { workers, exchange, why } = pool.backend;
  const refused = await pool.attention(q, k, { shape: [1], data: new Float32Array(1) }).catch((error) => error.code);
  pool.dispose();
  return {
    ...{ workers, exchange, why, refused, taken, parts: parts.length },
    attention: same(actual.out.data, expected) && same(out.data, expected),
    float16: isHalf && float16.every(({ out: { data } }) => same(data, ofBits)),
    operands: [q, k, v].every(({ data }, at) => same(operands['qkv'[at]].data, data)),
    gradients: ['dQ', 'dK', 'dV'].every((name) => same(gradients[name].data, wantedGradients[name].data)),
    transformer: same(logits.data, wanted),
  };
}

const onPage = (browser, headers, withPolicy = false) => onPackagePage(browser, headers, compare, withPolicy);

const exact = { refused: 'E_SHAPE', attention: true, float16: true, operands: true, gradients: true, transformer: true };

export const tests = [
  {
    name: 'the pool has the bits of one thread, with messages on any page',
    browserBug: lostWorkers,
    essential: true,
    async run({ browser }) {
      const { why, ...rest } = await onPage(browser, {});
      assert.deepEqual(rest, { workers: 2, exchange: 'messages', parts: 2, taken: 3, ...exact });
      assert.equal(why, '2 workers, messages: the page is not cross-origin isolated');
    },
  },
  {
    name: 'the pool shares memory on a cross-origin isolated page',
    browserBug: lostWorkers,
    essential: true,
    async run({ browser, kind }) {
      const { why, ...rest } = await onPage(browser, isolated);
      // WebKitGTK 2.50 has no SharedArrayBuffer; Safari has.
      const shares = kind !== 'webkit' || why.endsWith('is cross-origin isolated');
      assert.deepEqual(rest, { workers: 2, exchange: shares ? 'shared memory' : 'messages', parts: 2, taken: shares ? 0 : 3, ...exact });
      assert.match(why, shares ? /is cross-origin isolated$/ : /: this browser has no SharedArrayBuffer$/);
    },
  },
  {
    name: 'the pool runs on the calling thread where a policy forbids workers',
    async run({ browser }) {
      const scripts = "script-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval'";
      const policy = `default-src 'self'; ${scripts}; worker-src 'none'`;
      const { why, ...rest } = await onPage(browser, { 'content-security-policy': policy });
      assert.deepEqual(rest, { workers: 0, exchange: 'messages', parts: 1, taken: 3, ...exact });
      assert.match(why, /Content-Security-Policy|security|insecure/i);
    },
  },
  {
    name: 'where Trusted Types are required, the pool runs in the workers of a policy, and says why without them',
    browserBug: lostWorkers,
    async run({ browser }) {
      const policy = { 'content-security-policy': "require-trusted-types-for 'script'; trusted-types pool" };
      const { why, ...rest } = await onPage(browser, policy, true);
      assert.deepEqual(rest, { workers: 2, exchange: 'messages', parts: 2, taken: 3, ...exact });
      assert.equal(why, '2 workers, messages: the page is not cross-origin isolated');
      const without = await onPage(browser, policy);
      // Browsers without Trusted Types ignore the policy.
      const context = await browser.createBrowserContext();
      const page = await patientPage(context);
      const knows = await page.evaluate(() => 'trustedTypes' in globalThis);
      await context.close();
      assert.deepEqual([without.workers, without.attention], [knows ? 0 : 2, true]);
      if (knows) assert.match(without.why, /^no worker could be started, .*: .*(Trusted|CSP)/);
    },
  },
];
