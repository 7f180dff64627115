import { describe, expect, it } from 'vitest';
import { formatBytes, nameInAddress, shownName, warningOf } from '../../src/model/limits.js';

describe('names and sizes', () => {
  it('are short, and without control characters on the page', () => {
    const name = `a\n\u202e${'b'.repeat(1000)}`;
    expect(nameInAddress({ name })).toBe(name.slice(0, 100));
    expect(shownName({ name })).toMatch(/^a\\u000a\\u202eb{77}…$/);
    expect([12_400, 3.2e6, 6.4e9].map(formatBytes)).toEqual(['12 kB', '3 MB', '6.40 GB']);
  });

  it('warn of a model that takes more than a quarter of the memory', () => {
    expect(warningOf(0.99e9, 4)).toBe('');
    expect(warningOf(1.01e9, 4)).toMatch(/^ It takes about 1\.01 GB, much for a page on this device/);
  });
});
