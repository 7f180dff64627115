// Registers the service worker, which keeps a copy of the page for use without a network.

import type { Backend } from 'multihead';
import { registerServiceWorker } from './own_scripts.js';

let asked = false;

const pause = 500; // so that the copy does not compete with what the visitor waits for

/** Called whenever the page shows numbers. */
export function keepOffline({ simd }: Pick<Backend, 'simd'>): void {
  // Absent over plain HTTP and in some private windows; the page works without it.
  if (asked || !import.meta.env.PROD || !('serviceWorker' in navigator)) return;
  asked = true;
  setTimeout(() => void registerServiceWorker(simd).catch(() => undefined), pause);
}
