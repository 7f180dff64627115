// Small images of attention maps: averaged to few cells, in 16 colors, as PNG (RFC 2083) with 4 bits for each cell.

import { Buffer } from 'node:buffer';
import { crc32, deflateSync } from 'node:zlib';

export const levels = 16;

/** Colors from no weight to the largest one: white to dark blue, darker at each step. */
export const palette: readonly (readonly [red: number, green: number, blue: number])[] = Array.from({ length: levels }, (_, level) => {
  const stops = [
    [255, 255, 255],
    [158, 202, 225],
    [49, 130, 189],
    [8, 48, 107],
  ] as const;
  const at = (level / (levels - 1)) * (stops.length - 1);
  const [from, to] = [stops[Math.floor(at)], stops[Math.ceil(at)]] as [readonly number[], readonly number[]];
  const mixed = from.map((value, channel) => Math.round(value + (at % 1) * ((to[channel] as number) - value)));
  return mixed as [number, number, number];
});

/** A map with `side` × `side` cells, each the mean of the weights that it covers, as levels of its largest one. */
export interface SmallMap {
  readonly side: number;
  /** 0 to 15: the square root of a cell's share of the largest cell. */
  readonly levels: Uint8Array;
}

/** @param weights (count, count) @param most most cells of a side */
export function smallMap(weights: Float32Array, count: number, most: number): SmallMap {
  const side = Math.min(count, most);
  const edge = (cell: number): number => Math.floor((cell * count) / side);
  const means = new Float64Array(side * side);
  for (let row = 0; row < side; row += 1) {
    for (let column = 0; column < side; column += 1) {
      let sum = 0;
      for (let query = edge(row); query < edge(row + 1); query += 1) {
        for (let key = edge(column); key < edge(column + 1); key += 1) sum += weights[query * count + key] as number;
      }
      means[row * side + column] = sum / ((edge(row + 1) - edge(row)) * (edge(column + 1) - edge(column)));
    }
  }
  const largest = means.reduce((a, b) => Math.max(a, b), 0);
  const level = (mean: number): number => (largest > 0 ? Math.round((levels - 1) * Math.sqrt(Math.max(0, mean) / largest)) : 0);
  return { side, levels: Uint8Array.from(means, level) };
}

function chunk(type: string, data: Uint8Array): Buffer {
  const bytes = Buffer.alloc(12 + data.length);
  bytes.writeUInt32BE(data.length, 0);
  bytes.write(type, 4, 'latin1');
  bytes.set(data, 8);
  bytes.writeUInt32BE(crc32(bytes.subarray(4, -4)), 8 + data.length);
  return bytes;
}

/** The bytes of a PNG file. */
export function png({ side, levels: cells }: SmallMap): Buffer {
  const header = Buffer.alloc(13);
  header.writeUInt32BE(side, 0);
  header.writeUInt32BE(side, 4);
  header.set([4, 3], 8); // 4 bits a cell, an index of the palette
  const stride = 1 + Math.ceil(side / 2);
  const rows = new Uint8Array(side * stride); // each row begins with its filter: 0, none
  for (let row = 0; row < side; row += 1) {
    for (let column = 0; column < side; column += 1) {
      const at = row * stride + 1 + (column >> 1);
      rows[at] = (rows[at] as number) | ((cells[row * side + column] as number) << (column % 2 === 0 ? 4 : 0));
    }
  }
  const signature = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);
  return Buffer.concat([
    signature,
    chunk('IHDR', header),
    chunk('PLTE', Uint8Array.from(palette.flat())),
    chunk('IDAT', deflateSync(rows, { level: 9 })),
    chunk('IEND', new Uint8Array()),
  ]);
}
