import { describe, expect, it, vi } from 'vitest';

vi.mock('../../src/maps/matrix_map.js', () => ({ paintStyle: () => ({ theme: 'light', ink: '#000', ratio: 1 }) }));
vi.mock('../../src/maps/heat_map.js', () => ({ paintMap: () => undefined }));
vi.mock('../../src/maps/map_layout.js', () => ({ family: 'sans-serif', layoutOf: () => undefined }));

const { csvOf, exactly } = await import('../../src/maps/save_map.js');

/** A reader of RFC 4180 that shares no code with the writer. */
function parse(csv: string): string[][] {
  return csv
    .split(/\r\n(?=(?:[^"]*"[^"]*")*[^"]*$)/)
    .slice(0, -1)
    .map((line) => line.split(/,(?=(?:[^"]*"[^"]*")*[^"]*$)/).map((cell) => (cell.startsWith('"') ? cell.slice(1, -1).replaceAll('""', '"') : cell)));
}

describe('exactly', () => {
  it.each([
    [0.1, '0.1'],
    [1, '1'],
    [-0, '-0'],
    [-Infinity, '-Infinity'],
    [1e-45, '1e-45'],
    [3.4028234663852886e38, '3.4028235e+38'],
  ])('writes %d in its shortest form', (value, text) => expect(exactly(Math.fround(value))).toBe(text));

  it('reads back as the same 32 bits, for random bits', () => {
    const bits = new Uint32Array(2000).map((_, i) => Math.imul(i + 1, 0x9e3779b1));
    for (const value of new Float32Array(bits.buffer)) {
      if (Number.isNaN(value)) continue;
      expect(Object.is(Math.fround(Number(exactly(value))), value)).toBe(true);
    }
  });
});

const labels = ['say "hi"', 'a,b', 'line\nbreak'];
const data = Float32Array.of(0.1, 1 / 3, 0, -Infinity, 5e-8, 1, 0.25, 0.25, 0.5);
const view = { rows: 3, cols: 3, data, rowLabels: labels, colLabels: labels, scale: 'weights' } as const;

describe('csvOf', () => {
  it('parses back exactly, labels and numbers', () => {
    const [head, ...lines] = parse(csvOf(view));
    expect(head).toEqual(['query \\ key', ...labels]);
    expect(lines.map(([label]) => label)).toEqual(labels);
    expect(lines.flatMap(([, ...numbers]) => numbers.map((text) => Math.fround(Number(text))))).toEqual([...data]);
  });

  it('names rows and columns that are no queries and keys', () => {
    expect(parse(csvOf({ ...view, axes: ['row', 'column'] }))[0]![0]).toBe('row \\ column');
  });

  it('numbers the columns of features from 1', () => {
    const { colLabels: _, ...features } = view;
    expect(parse(csvOf(features))[0]).toEqual(['', '1', '2', '3']);
  });
});
