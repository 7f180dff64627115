import { load } from 'multihead';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { inputsOf } from '../../../bindings/bench/inputs.mjs';
import { aliasesOfPeers, foundPeers } from '../../peers.js';
import { interleaved, largestDifference, warmUp, type Contender } from '../../src/speed/measure.js';
import { sizes, type Row } from '../../src/speed/messages.js';
import { plainAttention } from '../../src/speed/plain_attention.js';
import { busyLine, comparison, csvOfSpeed, gigaflops, machineName, power, reported, significant } from '../../src/speed/report.js';

describe('plain attention', () => {
  it('computes what the module computes', async () => {
    const mh = await load();
    const [q, k, v] = inputsOf(sizes.sentence);
    const expected = mh.attention(q!, k!, v!, { causal: 'topLeft' }).out.data;
    const out = new Float32Array(expected.length);
    plainAttention(sizes.sentence, q!.data, k!.data, v!.data, out);
    expect(largestDifference(out, expected)).toBeLessThan(1e-6);
  });
});

describe('measuring', () => {
  let now = 0;
  // A clock that only calls advance: a call takes half a millisecond on any machine.
  beforeEach(() => void vi.stubGlobal('performance', { now: () => now }));
  afterEach(() => void vi.unstubAllGlobals());

  const contender = (name: string, calls: string[], isAsync = false): Contender => ({
    name,
    isAsync,
    run: () => {
      calls.push(name);
      now += 0.5;
      return isAsync ? Promise.resolve() : undefined;
    },
    output: () => new Float32Array(1),
  });

  it('warms up, then measures in turns, one sample a round', async () => {
    const calls: string[] = [];
    const both = [contender('a', calls), contender('b', calls, true)];
    expect(await warmUp(both[0]!, { rounds: 1, warmUp: 20, sample: 5 })).toBe(10);
    expect(calls.length).toBeGreaterThanOrEqual(40);
    calls.length = 0;
    const seen: number[][] = [];
    const entrants = both.map((one) => ({ contender: one, calls: 2 }));
    for await (const samples of interleaved(entrants, 2)) seen.push(samples.map((list) => list.length));
    expect(calls.join('')).toBe('aabbaabb');
    expect(seen).toEqual([
      [1, 1],
      [2, 2],
    ]);
  });

  it('finds the largest difference, and takes NaN and other lengths for infinite ones', () => {
    expect(largestDifference(Float32Array.of(1, 2), Float32Array.of(1, 2.5))).toBe(0.5);
    expect(largestDifference(Float32Array.of(NaN), Float32Array.of(1))).toBe(Infinity);
    expect(largestDifference(Float32Array.of(1), Float32Array.of(1, 2))).toBe(Infinity);
  });
});

const row = (name: string, samples: number[], difference = 0, failure = ''): Row => ({
  ...{ name, note: '', samples, difference, failure },
});

describe('report', () => {
  const rows = [
    row('multihead, one worker', [1, 3, 2], 2e-7),
    row('Plain JavaScript', [90, 100, 110]),
    row('Wrong', [1], 2e-4),
    row('Slow', [400], 1e-4),
    row('Absent', [], 0, 'not, "here"'),
  ];

  it('prints no speed-up if outputs differ by more than 1e-4', () => {
    expect(reported(rows).map(({ timesPlain }) => timesPlain)).toEqual([50, null, null, 0.25, null]);
    const said = reported(rows).map(comparison);
    expect(said[0]).toBe('50 times as fast as plain JavaScript (33 to 90 in the rounds); results differ by at most 2\u00a0×\u00a010⁻⁷');
    expect(said[2]).toMatch(/outputs differ by 2\u00a0×\u00a010⁻⁴, so the times are not compared/);
    expect(said[3]).toMatch(/^plain JavaScript is 4.0 times as fast/);
    expect(said[4]).toBe('');
  });

  it('says how many operations a second, and that a machine is busy', () => {
    expect(gigaflops('sentence', 1)).toBe('0.135 GFLOP/s');
    expect(busyLine(reported(rows))).toMatch(/^This machine is busy: .* up to 3\.0 times as long/);
    expect(busyLine(reported(rows.slice(1, 3)))).toBe('');
  });

  it('gives median and spread', () => {
    expect(reported(rows)[0]).toMatchObject({ milliseconds: 2, fastest: 1, slowest: 3 });
  });

  it('writes CSV that reads back', () => {
    const engine = { simd: 'relaxed', workers: 2, why: '' } as const;
    const text = csvOfSpeed(reported(rows), 'page', engine, 'Firefox 140 on Linux, 8 processor threads');
    const lines = text.trimEnd().split('\r\n');
    expect(lines).toHaveLength(6);
    expect(lines[1]).toBe('"Firefox 140 on Linux, 8 processor threads",relaxed,12,1024,64,"multihead, one worker",,2,1,3,50,2e-7,');
    expect(lines[5]).toMatch(/,Absent,,,,,,,"not, ""here"""$/);
  });

  it('writes numbers in few digits', () => {
    expect([0.012345, 1.2345, 123.45, 1234.5, 0].map(significant)).toEqual(['0.0123', '1.23', '123', '1235', '0']);
    const plain = (value: number) => power(value).replaceAll('\u00a0', ' ');
    expect([1.1e-7, 1e-4, 9.5e-8, 0, Infinity].map(plain)).toEqual([...['2 × 10⁻⁷', '1 × 10⁻⁴', '1 × 10⁻⁷', '0', '∞']]);
  });

  it('names browser, system and processors', () => {
    const agent = 'Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36';
    expect(machineName({ userAgent: agent, hardwareConcurrency: 1 })).toBe('Chromium 140 on Linux, 1 processor thread');
    expect(machineName({ userAgent: '', hardwareConcurrency: 4 })).toBe('A browser on an unknown system, 4 processor threads');
  });
});

describe('peers', () => {
  it('are replaced by nothing where they are not installed', () => {
    expect(foundPeers('/nowhere/')).toBeUndefined();
    expect(aliasesOfPeers(undefined)[0]!.replacement).toMatch(/no_peers\.ts$/);
  });

  it('come from the folder in which they are installed', () => {
    const aliases = aliasesOfPeers('/peers/');
    const found = aliases.filter(({ find }) => (find as RegExp).test('onnxruntime-web/ort-wasm-simd-threaded.wasm?url'));
    expect(found.map(({ replacement }) => replacement)).toEqual(['/peers/onnxruntime-web/dist/ort-wasm-simd-threaded.wasm?url']);
    expect(aliases.some(({ find }) => (find as RegExp).test('onnxruntime-web/wasm/more'))).toBe(false);
  });
});
