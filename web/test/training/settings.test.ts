import { describe, expect, it } from 'vitest';
import { ticks } from '../../src/sections/training/line_chart.js';
import { fromHash, toHash } from '../../src/state/page_state.js';
import { describeSettings, settingsOf, smaller } from '../../src/training/settings.js';
import { usualSettings } from './usual_settings.js';

const settingsIn = (hash: string) => settingsOf(fromHash(hash).state);

describe('settings of a training', () => {
  it('come from the address, with what is usual for the kind', () => {
    expect(settingsIn('')).toEqual(usualSettings('fourJobs'));
    expect(settingsIn('train=induction')).toEqual(usualSettings('induction'));
    expect(settingsIn('train=induction&trainHeads=4&layers=1&seed=0&rate=0.00001')).toEqual({
      ...{ kind: 'induction', heads: 4, layers: 1, seed: 0, rate: 1e-5 },
    });
  });

  it('that are not possible are named, and the defaults used', () => {
    const read = fromHash('trainHeads=10000&layers=0&seed=-1&rate=NaN&train=magic');
    expect(read.broken.sort()).toEqual(['layers', 'rate', 'seed', 'train', 'trainHeads']);
    expect(settingsOf(read.state)).toEqual(usualSettings('fourJobs'));
    for (const rate of ['0', '-0.1', '2', '1e9', '']) expect(fromHash(`rate=${rate}`).broken, rate).toEqual(['rate']);
  });

  it('go back into the address', () => {
    // An address that names no source is of the time when the page opened on hand-built heads.
    const hash = 'train=induction&seed=7&trainHeads=8&layers=3&rate=0.003';
    expect(new URLSearchParams(toHash(fromHash(hash).state)).toString()).toBe(`source=rules&${hash}`);
  });

  it('are described in few words', () => {
    expect(describeSettings(usualSettings('fourJobs'))).toBe('4 heads, seed 12');
    expect(describeSettings({ ...usualSettings('induction'), heads: 1, rate: 0.1 })).toBe('1 head, 2 layers, seed 12, rate 0.1');
  });

  it('have a smaller model beside them, if there is one', () => {
    expect(smaller(usualSettings('fourJobs'))?.heads).toBe(1);
    expect(smaller({ ...usualSettings('fourJobs'), heads: 1 })).toBeUndefined();
    expect(smaller(usualSettings('induction'))?.layers).toBe(1);
  });
});

it('an axis has round numbers', () => {
  expect(ticks(600, 6)).toEqual([0, 100, 200, 300, 400, 500, 600]);
  expect(ticks(3.5, 4)).toEqual([0, 1, 2, 3]);
  expect(ticks(1, 4)).toEqual([0, 0.5, 1]);
});
