import { expect, it } from 'vitest';
import { presets } from '../../src/attention/presets.js';
import { changedIn } from '../../src/state/changes.js';
import { defaults } from '../../src/state/page_state.js';

it('names what differs between two states, each once', () => {
  expect(changedIn(defaults, defaults)).toBe('');
  expect(changedIn({ ...defaults, temperature: 2 }, defaults)).toBe('temperature');
  expect(changedIn({ ...defaults, query: 1, key: 2 }, defaults)).toBe('chosen word');
  const { text, heads, query } = presets[1]!;
  expect(changedIn({ ...defaults, text, heads, query }, defaults)).toBe('sentence, heads and chosen word');
});
