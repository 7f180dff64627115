// The benchmarks in a browser. native/dev/bench/browser.mjs serves this page and calls window.nextEvent() repeatedly: {
// machine }, { benchmark } …, then { done } or { error }.

import { chosenCases } from './cases.mjs';
import { eventsOf } from './measure.mjs';

async function* events() {
  const wanted = new URLSearchParams(location.search);
  const simd = wanted.get('simd');
  if (!crossOriginIsolated) throw new Error('the page is not isolated: its clock would be too coarse');
  const { load } = await import('../dist/index.js');
  yield* eventsOf(await load({ simd }), chosenCases(wanted.get('filter') ?? ''));
}

const stream = events();
window.nextEvent = async () => {
  try {
    const { value, done } = await stream.next();
    return done ? { done: true } : value;
  } catch (error) {
    return { error: String(error?.message ?? error) };
  }
};
