import { describe, expect, it, vi } from 'vitest';

vi.mock('../../src/dom/printing.js', () => ({ printing: { watch: () => undefined, get: () => false } }));
const { spanOf } = await import('../../src/maps/matrix_table.js');

describe('the part of a table that is in the document', () => {
  it('is what can be seen and four more on each side', () => {
    expect(spanOf(64, 20, 0, 200)).toEqual({ begin: 0, end: 14 });
    expect(spanOf(64, 20, 400, 200)).toEqual({ begin: 16, end: 34 });
    expect(spanOf(64, 20, 1080, 200)).toEqual({ begin: 50, end: 64 });
  });

  it('is everything in a small table, and stays inside one that became shorter', () => {
    expect(spanOf(7, 20, 0, 200)).toEqual({ begin: 0, end: 7 });
    expect(spanOf(3, 20, 5000, 200)).toEqual({ begin: 0, end: 3 });
  });
});
