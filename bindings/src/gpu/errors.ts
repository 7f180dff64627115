// Errors of the GPU.

import { MultiheadError } from '../runtime/errors.js';

/** The GPU cannot do it. */
export const gpuError = (argument: string, expected: string, got: string, cause?: unknown): MultiheadError =>
  new MultiheadError('E_GPU', { argument, expected, got, ...(cause === undefined ? {} : { cause }) });

/** The device is gone, and with it all tensors on it. */
export const lostError = (why: string, cause?: unknown): MultiheadError =>
  new MultiheadError('E_GPU_LOST', {
    argument: 'gpu',
    expected: 'a device that is not lost',
    got: why,
    message: `gpu: the device is lost (${why || 'the browser does not say why'}), and with it all tensors on it; mh.gpu() opens another`,
    ...(cause === undefined ? {} : { cause }),
  });
