// Registers the service worker, which keeps a copy of the page for use without a network.

import type { Backend } from 'multihead';
import { registerServiceWorker } from './own_scripts.js';

let asked = false;

const pause = 500; // milliseconds; the copy must not compete with requests that the visitor waits for

/** Called whenever the page shows numbers. */
export function keepOffline({ simd }: Pick<Backend, 'simd'>): void {
  // Service workers are absent over plain HTTP and in some private windows; the page works without them.
  if (asked || !import.meta.env.PROD || !('serviceWorker' in navigator)) return;
  asked = true;
  setTimeout(() => void registerServiceWorker(simd).catch(() => undefined), pause);
}
