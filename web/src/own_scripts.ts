// The scripts that the page starts: its workers and its service worker. The page's security policy requires Trusted Types
// (https://www.w3.org/TR/trusted-types/): a script starts only from an address that comes from a policy. This policy gives
// the addresses of the page's own scripts, and no other.

import type { Backend } from 'multihead';
import attention from './attention_worker.ts?worker&url';
import model from './model_worker.ts?worker&url';
import speed from './speed_worker.ts?worker&url';
import type { StartWorker } from './state/app.js';
import training from './training_worker.ts?worker&url';
import { createPolicy } from './workers/trusted_types.js';

const workers = { attention, model, speed, training };
/** The service worker keeps one of the two WebAssembly builds. */
const serviceWorkers = { relaxed: 'service_worker.js?simd=relaxed', simd128: 'service_worker.js?simd=simd128' };
const addresses = new Map(Object.entries({ ...workers, ...serviceWorkers }));

const addressOf = createPolicy('multihead', (name) => addresses.get(name) ?? null);

export const startWorker: StartWorker = (name) => new Worker(addressOf(name), { type: 'module', name });

const registerServiceWorker = (simd: keyof typeof serviceWorkers): Promise<unknown> =>
  navigator.serviceWorker.register(addressOf(simd), { updateViaCache: 'none' });

/** Milliseconds before the service worker starts: its copy must not compete with requests that the visitor waits for. */
const pause = 500;
let registered = false;

/** Has the service worker keep a copy of the page for use without a network. Called whenever the page shows numbers. */
export function keepOffline({ simd }: Pick<Backend, 'simd'>): void {
  // Service workers are absent over plain HTTP and in some private windows; the page works without them.
  if (registered || !import.meta.env.PROD || !('serviceWorker' in navigator)) return;
  registered = true;
  setTimeout(() => void registerServiceWorker(simd).catch(() => undefined), pause);
}
