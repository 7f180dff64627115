// The status chip: which build computes the numbers, how fast, and its size.

import type { ForwardResult } from '../messages.js';
import type { Store } from '../store.js';
import { el } from './dom.js';
import { formatMilliseconds } from './format.js';

export interface StatusChip {
  readonly element: HTMLElement;
  /** Shows "no engine" until the next result. */
  fail(): void;
}

export function statusChip(result: Store<ForwardResult | null>): StatusChip {
  const dot = el('span', { class: 'dot', 'aria-hidden': 'true' });
  const summary = el('summary', {}, dot, 'loading');
  const facts = el('dl', {});
  const chip = el('details', { class: 'status', id: 'status' }, summary, facts);
  result.watch((now) => {
    if (!now) return;
    const { simd, why, wasmBytes, version, threads } = now.backend;
    const kilobytes = `${(wasmBytes / 1000).toFixed(0)} kB`;
    const time = formatMilliseconds(now.milliseconds);
    chip.classList.add('is-ready');
    summary.replaceChildren(
      dot,
      el('span', {}, simd === 'relaxed' ? 'relaxed SIMD' : 'SIMD128'),
      el('span', { class: 'number' }, time),
      el('span', { class: 'number' }, kilobytes),
    );
    const rows: [string, string][] = [
      ['Backend', `${simd}, ${threads} thread`],
      ['Why', why],
      ['Forward pass', `${time} for ${now.tokens.length} tokens and ${now.heads.length} heads`],
      ['WebAssembly', `${kilobytes}, version ${version}`],
    ];
    facts.replaceChildren(...rows.flatMap(([name, value]) => [el('dt', {}, name), el('dd', {}, value)]));
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
    fail() {
      chip.classList.remove('is-ready');
      summary.replaceChildren(dot, 'no engine');
      facts.replaceChildren();
    },
  };
}
