// The status chip: the build that computes the numbers and the reason for its choice, its speed, and its size.

import type { ForwardResult } from '../attention/messages.js';
import { formatMilliseconds } from '../base/format.js';
import type { Store } from '../base/store.js';
import { el } from '../dom/dom.js';

/** @param passTime median of warm runs in milliseconds; null before the first median */
export function statusChip(result: Store<ForwardResult | null>, passTime: Store<number | null>) {
  const dot = el('span', { class: 'dot', 'aria-hidden': 'true' });
  const summary = el('summary', {}, dot, 'loading');
  const facts = el('dl', {});
  const chip = el('details', { class: 'status', id: 'status' }, summary, facts);
  let measured = 'being measured';
  const show = () => {
    const now = result.get();
    if (!now) return;
    const { simd, why, wasmBytes, version } = now.backend;
    const kilobytes = `${(wasmBytes / 1000).toFixed(0)} kB`;
    const milliseconds = passTime.get();
    const time = milliseconds === null ? '' : formatMilliseconds(milliseconds);
    chip.classList.add('is-ready');
    summary.replaceChildren(
      dot,
      ...(time ? [el('span', { class: 'number' }, time), el('span', { class: 'wide' }, ' in your browser')] : ['in your browser']),
    );
    const rows: [string, string][] = [
      ['Backend', simd === 'relaxed' ? 'WebAssembly with relaxed SIMD' : 'WebAssembly with SIMD128'],
      ['Why', simd === 'relaxed' ? 'Your browser has the fastest kind of SIMD: it multiplies and adds in one instruction.' : why],
      ['Forward pass', measured],
      ['Workers', workersLine()],
      ['WebAssembly', `${kilobytes}, version ${version}`],
    ];
    facts.replaceChildren(...rows.flatMap(([name, value]) => [el('dt', {}, name), el('dd', {}, value)]));
  };
  result.watch(show);
  passTime.watch((milliseconds) => {
    const now = result.get();
    if (!now || milliseconds === null) return;
    const sizes = `${now.tokens.length} tokens and ${now.heads.length} heads`;
    measured = `${formatMilliseconds(milliseconds)} for ${sizes}, median of warm runs`;
    show();
  });
  document.addEventListener('click', (event) => {
    if (!chip.contains(event.target as Node)) chip.open = false;
  });
  chip.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape') return;
    chip.open = false;
    summary.focus();
  });
  return {
    element: chip,
    /** Shows that there is no sentence, if nothing was computed yet. */
    idle(): void {
      if (!result.get()) summary.replaceChildren(dot, 'no sentence yet');
    },
    /** Shows "no engine" until the next result. */
    fail(): void {
      chip.classList.remove('is-ready');
      summary.replaceChildren(dot, 'no engine');
      facts.replaceChildren();
    },
  };
}

/** WebKitGTK has no shared memory on an isolated page either. */
const workersLine = (): string =>
  crossOriginIsolated && 'SharedArrayBuffer' in globalThis
    ? 'share memory, because the page is isolated'
    : `exchange messages, because ${crossOriginIsolated ? 'this browser shares no memory' : 'the page is not isolated'}`;
