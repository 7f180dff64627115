import { describe, expect, it } from 'vitest';
import { cellText } from '../../src/maps/cell_text.js';

const labels = ['say "hi"', 'a,b', 'line\nbreak'];
const data = Float32Array.of(0.1, 1 / 3, 0, -Infinity, 5e-8, 1, 0.25, 0.25, 0.5);
const view = { rows: 3, cols: 3, data, rowLabels: labels, colLabels: labels, scale: 'weights' } as const;

describe('cellText', () => {
  it('reads a cell out, and masked ones as such', () => {
    expect(cellText(view, 0, 1)).toBe('query say "hi", key a,b, 0.33');
    expect(cellText({ ...view, hidden: () => true }, 0, 2)).toBe('query say "hi", key line\nbreak, masked, 0');
    expect(cellText({ ...view, muted: true }, 0, 2)).toBe('query say "hi", key line\nbreak, muted');
    expect(cellText({ ...view, axes: ['row', 'column'] }, 0, 1)).toBe('row say "hi", column a,b, 0.33');
    expect(cellText({ ...view, scale: 'signed', hidden: () => true }, 1, 0)).toMatch(/masked, −∞$/);
  });
});
