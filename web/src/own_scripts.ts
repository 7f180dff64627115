// The scripts that the page starts: its workers and its service worker. The page's security policy requires Trusted Types
// (https://www.w3.org/TR/trusted-types/): a script starts only from an address that comes from a policy. This policy gives
// the addresses of the page's own scripts, and no other.

import attention from './attention_worker.ts?worker&url';
import model from './model_worker.ts?worker&url';
import speed from './speed_worker.ts?worker&url';
import training from './training_worker.ts?worker&url';
import { createPolicy } from './workers/trusted_types.js';

const workers = { attention, model, speed, training };
/** The service worker keeps one of the two WebAssembly builds. */
const serviceWorkers = {
  relaxed: 'service_worker.js?simd=relaxed',
  simd128: 'service_worker.js?simd=simd128',
};
const addresses = new Map(Object.entries({ ...workers, ...serviceWorkers }));

const addressOf = createPolicy('multihead', (name) => addresses.get(name) ?? null);

export const startWorker = (name: keyof typeof workers): Worker => new Worker(addressOf(name), { type: 'module', name });

export const registerServiceWorker = (simd: keyof typeof serviceWorkers): Promise<unknown> =>
  navigator.serviceWorker.register(addressOf(simd), { updateViaCache: 'none' });
