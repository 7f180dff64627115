import { expect, it } from 'vitest';
import { changedIn } from '../src/changes.js';
import { defaults } from '../src/page_state.js';
import { presets } from '../src/presets.js';

it('names what differs between two states, each once', () => {
  expect(changedIn(defaults, defaults)).toBe('');
  expect(changedIn({ ...defaults, temperature: 2 }, defaults)).toBe('temperature');
  expect(changedIn({ ...defaults, query: 1, key: 2 }, defaults)).toBe('chosen word');
  const { text, heads, query } = presets[1]!;
  expect(changedIn({ ...defaults, text, heads, query }, defaults)).toBe('sentence, heads and chosen word');
});
