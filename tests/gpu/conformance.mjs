// Runs a folder of golden cases on the GPU of a page, for bindings/conformance.mjs --device gpu.

import { openPage } from './chromium.mjs';

/** @returns {Promise<{ passed: number, failed: number }>} */
export async function conformanceOnGpu(folder, manifests) {
  const { call, close } = await openPage({ folder });
  try {
    return await call('conformance', manifests);
  } finally {
    await close();
  }
}
