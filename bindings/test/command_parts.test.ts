// The parts of the command: arguments, statistics of maps, and charts.

import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { inflateSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { headStatistics } from 'multihead/lab';
import { count, flag, flagOf, helpOf, lists, number, numbers, parse, UsageError } from '../src/command/arguments.ts';
import { mostSide, svgOf, type ChartMap } from '../src/command/chart.ts';
import { main, type Surroundings } from '../src/command/main.ts';
import { levels, palette, png, smallMap } from '../src/command/map_image.ts';
import { statisticsOf } from '../src/command/statistics.ts';
import { builds, loadBuild } from './builds.ts';
import { random } from './random.ts';

describe('arguments', () => {
  const options = {
    topK: count('how many'),
    ids: lists('ids'),
    heads: numbers('heads'),
    scale: number('a scale', 'less than 1', (x) => x < 1),
    json: flag('JSON'),
  };

  it('are read in any order and form', () => {
    const { values, positionals } = parse(
      ['a', '--top-k=3', '--ids', '1,2', 'b', '--ids', ' 3 , 4', '--json', '--scale', '-0.5', '--', '--json'],
      options,
    );
    expect(values).toEqual({
      topK: 3,
      ids: [
        [1, 2],
        [3, 4],
      ],
      heads: undefined,
      scale: -0.5,
      json: true,
    });
    expect(positionals).toEqual(['a', 'b', '--json']);
    expect(parse([], options).values).toEqual({ topK: undefined, ids: [], heads: undefined, scale: undefined, json: false });
    expect(flagOf('repetitionPenalty')).toBe('--repetition-penalty');
  });

  it.each([
    ['--top-k=-1', '"-1"'],
    ['--top-k=', '""'],
    ['--top-k= ', '" "'],
    ['--top-k=1e999', '"1e999"'],
    ['--top-k=9007199254740992', '"9007199254740992"'],
    ['--scale=1', '"1"'],
    ['--scale=NaN', '"NaN"'],
    ['--ids=1,,2', '"1,,2"'],
    ['--ids=2147483648', '"2147483648"'],
    ['--heads=-1', '"-1"'],
    ['--heads=1.5', '"1.5"'],
    ['--json=true', '"true"'],
    ['--ids', 'none'],
    ['--scal=1', 'another one'],
    ['--constructor', 'another one'],
  ])('are refused: %s', (argument, got) => {
    expect(() => parse([argument], options)).toThrow(UsageError);
    expect(() => parse([argument], options)).toThrow(`, got ${got}`);
  });

  it('are listed, each in a line', () => {
    expect(helpOf(options).split('\n').slice(0, 2)).toEqual(['  --top-k N     how many', '  --ids LIST    ids']);
  });
});

/** Weights of a causal head over `n` tokens. */
function causalWeights(n: number, seed: number): Float32Array {
  const { next } = random(seed);
  const weights = new Float32Array(n * n);
  for (let query = 0; query < n; query += 1) {
    const row = Array.from({ length: query + 1 }, () => Math.exp(4 * next()));
    const sum = row.reduce((a, b) => a + b);
    weights.set(
      row.map((each) => each / sum),
      query * n,
    );
  }
  return weights;
}

describe('statisticsOf', () => {
  it('gives the numbers of headStatistics(), with the entropy in bits', async () => {
    const mh = await loadBuild(builds[0] ?? 'simd128');
    const ids = [3, 7, 1, 3, 7, 7, 2];
    const data = causalWeights(ids.length, 5);
    const wanted = headStatistics(mh, { shape: [1, 1, ids.length, ids.length], data }, { tokens: Int32Array.from(ids) });
    const { entropy, previous, first, induction } = statisticsOf(data, ids);
    expect(entropy * Math.LN2).toBeCloseTo(wanted.entropy[0] as number, 5);
    expect(previous).toBeCloseTo(wanted.previousToken[0] as number, 6);
    expect(first).toBeCloseTo(wanted.firstToken[0] as number, 6);
    expect(induction).toBeCloseTo(wanted.induction?.[0] as number, 6);
  });

  it('is exact where it can be computed by hand', () => {
    const weights = Float32Array.of(1, 0, 0, 0, 1, 0, 0.25, 0.25, 0.5);
    expect(statisticsOf(weights, [5, 6, 7])).toEqual({ entropy: 0.5, previous: 0.125, first: 0.125, self: 2.5 / 3, induction: null });
    expect(statisticsOf(weights, [5, 6, 5]).induction).toBe(0.25);
    expect(statisticsOf(Float32Array.of(1), [5])).toEqual({ entropy: 0, previous: 0, first: 0, self: 1, induction: null });
  });
});

/** Indexes of the palette of a PNG of 4 bits. */
function cellsOf(bytes: Buffer): number[] {
  const side = bytes.readUInt32BE(16);
  const begin = bytes.indexOf('IDAT');
  const rows = inflateSync(bytes.subarray(begin + 4, begin + 4 + bytes.readUInt32BE(begin - 4)));
  const stride = 1 + Math.ceil(side / 2);
  return Array.from({ length: side * side }, (_, at) => {
    const column = at % side;
    return ((rows[Math.floor(at / side) * stride + 1 + (column >> 1)] as number) >> (column % 2 === 0 ? 4 : 0)) & 15;
  });
}

describe('smallMap', () => {
  it('averages blocks, with the largest cell darkest', () => {
    const weights = Float32Array.from({ length: 16 }, (_, at) => [1, 0, 0.5, 0.5][at % 4] as number);
    expect([...smallMap(weights, 4, 2).levels]).toEqual([15, 15, 15, 15]);
    expect([...smallMap(weights, 4, 8).levels].slice(0, 4)).toEqual([15, 0, 11, 11]);
    expect([...smallMap(new Float32Array(9), 3, 8).levels]).toEqual(Array(9).fill(0));
    const { side, levels: cells } = smallMap(causalWeights(50, 1), 50, 7);
    expect([side, cells.length, Math.max(...cells)]).toEqual([7, 49, levels - 1]);
    for (let row = 0; row < 6; row += 1) expect(cells[row * 7 + 6]).toBe(0); // no query sees later keys
  });

  it('is the PNG, with a color darker than the one before it for each level', () => {
    const map = smallMap(causalWeights(9, 2), 9, 9);
    expect(cellsOf(png(map))).toEqual([...map.levels]);
    const sums = palette.map((color) => color.reduce((a, b) => a + b));
    expect(sums).toHaveLength(levels);
    for (let level = 1; level < levels; level += 1) expect(sums[level]).toBeLessThan(sums[level - 1] as number);
  });
});

describe('svgOf', () => {
  function chart(layers: number, heads: number, tokens: number, text: string): string {
    const [rows, columns] = [layers, heads].map((count) => Array.from({ length: count }, (_, at) => at)) as [number[], number[]];
    const side = mostSide(layers * heads);
    const maps: ChartMap[] = rows.flatMap((layer) =>
      columns.map((head) => ({
        layer,
        head,
        map: smallMap(causalWeights(tokens, 1 + layer * heads + head), tokens, side),
        note: `layer ${layer}, head ${head}`,
      })),
    );
    return svgOf({ modelType: 'llama', text, tokens, layers: rows, heads: columns, maps });
  }

  it('has a title, axes, and every head once', () => {
    const svg = chart(2, 3, 12, 'the cat sat');
    for (const words of [
      'Attention of every head: llama, 12 tokens',
      '“the cat sat”',
      'layer 1<',
      'head 2<',
      'key position, 0 to 11',
      'query position',
    ]) {
      expect(svg).toContain(words);
    }
    expect(svg.match(/<image /g)).toHaveLength(6);
  });

  it('escapes its text', () => {
    const svg = chart(1, 1, 3, '"<script>&\u0000\u202e]]>');
    expect(svg).not.toMatch(/<script|[\u0000\u202e]|&(?!#\d+;)/);
    expect(svg).toContain('&#34;&#60;script&#62;&#38;\\u0000\\u202e]]&#62;');
  });

  it('stays below 600 kB for many heads and long texts', () => {
    expect(chart(12, 12, 100, 'a').length).toBeLessThan(350_000);
    expect(chart(32, 32, 40, 'a').length).toBeLessThan(600_000);
    expect(chart(4, 4, 300, 'a').length).toBeLessThan(100_000);
  });
});

describe('multihead heads of a model with 100 heads', () => {
  const tokens = 64;
  const ids = Array.from({ length: tokens }, (_, at) => at).join();
  /** Runs the command with a model whose weights are all alike. `onListen` is called each time that Ctrl-C gets a listener. */
  async function heads(args: readonly string[], onListen: (listener: () => void) => void = () => {}) {
    const info = { modelType: 'uniform', numLayers: 10, numHeads: 10 };
    const attentions = async () => ({ data: new Float32Array(100 * tokens ** 2).fill(1 / tokens) });
    const openModel = async () => ({ info, workers: 0, attentions, dispose() {} });
    let stdout = '';
    const stream = { on() {}, write: (text: string, done: () => void) => ((stdout += text), done(), true) };
    const process = {
      stdin: {},
      stdout: stream,
      stderr: { ...stream, write: () => true },
      on: (_: string, listener: () => void) => onListen(listener),
      off() {},
    };
    const code = await main(['heads', 'folder', '--ids', ids, ...args], {
      openModel,
      loadBench: () => Promise.reject(),
      version: '',
      process,
    } as unknown as Surroundings);
    return { code, stdout };
  }

  it('writes a chart whose maps are the smaller, the more there are', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'multihead-heads-'));
    try {
      const chart = join(folder, 'heads.svg');
      expect((await heads(['--chart', chart])).code).toBe(0);
      const images = [...readFileSync(chart, 'utf8').matchAll(/base64,([^"]+)"/g)].map(([, data]) => Buffer.from(data as string, 'base64'));
      expect(images).toHaveLength(100);
      expect(mostSide(100)).toBeLessThan(tokens);
      expect(images[0]?.readUInt32BE(16)).toBe(mostSide(100));
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  it('ends with 130 after Ctrl-C between two heads, without output', async () => {
    let listeners = 0;
    // The first listener waits while the model is opened.
    expect(await heads([], (listener) => (listeners += 1) === 2 && listener())).toEqual({ code: 130, stdout: '' });
    expect(listeners).toBe(2);
  });
});
