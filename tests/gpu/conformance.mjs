// Runs a folder of golden cases on the GPU of a page, for bindings/conformance.mjs --device gpu.

import { openPage } from './chromium.mjs';

/** True if all cases pass that a GPU computes. */
export async function conformanceOnGpu(folder) {
  const { call, close } = await openPage({ folder });
  try {
    const { passed, failed, leftOut, errors } = await call('conformance');
    for (const [reason, names] of Object.entries(leftOut)) console.log(`left out, ${reason}: ${names.length} (${[...new Set(names)].join(', ')})`);
    const left = Object.values(leftOut).reduce((sum, { length }) => sum + length, 0);
    console.log(`${passed} passed, ${failed} failed, ${left} left out; ${errors}`);
    return failed === 0;
  } finally {
    await close();
  }
}
