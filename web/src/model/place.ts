// Where a model computes: what the visitor chooses, and what the page says about it.

import type { Model } from 'multihead/models';
import { counted } from '../base/format.js';
import type { Failure } from '../workers/protocol.js';

/** `auto`: the GPU if it is faster than the processor. */
export const deviceChoices = ['auto', 'gpu', 'cpu'] as const;
export type DeviceChoice = (typeof deviceChoices)[number];

export interface ModelPlace {
  /** "GPU", "2 workers", "1 thread". */
  readonly where: string;
  /** The reason in sentences; empty if nothing else was possible. */
  readonly why: string;
  /** Why it is not on the GPU, which the visitor has chosen; empty if it is as chosen. */
  readonly refusal: string;
}

export function placeOf({ device, workers }: Pick<Model, 'device' | 'workers'>, refusal: string): ModelPlace {
  const [side, ...rest] = device.split(': ');
  const said = rest.join(': ');
  if (side === 'gpu')
    return { where: 'GPU', why: `The GPU computes: ${said}. The processor computes gradients, which an experiment's estimates need.`, refusal };
  const faster = said.replace(/^faster than gpu: /, '');
  const reason = said.replace(/^gpu: expected an? .*, got none: /, '');
  const why = said === faster ? said && `The GPU computes nothing: ${reason}.` : `The processor is faster than the GPU: ${faster}.`;
  return { where: workers > 0 ? counted(workers, 'worker') : '1 thread', why: refusal || why, refusal };
}

/** True for an error of the GPU, after which the processor can take the model. */
export const isOfGpu = ({ code, argument }: Failure): boolean => ['E_GPU', 'E_GPU_LOST', 'E_MEMORY'].includes(code ?? '') || argument === 'device';

export const refusalOf = ({ code, message }: Failure): string =>
  code === 'E_GPU'
    ? 'This browser offers pages no GPU, so the model computes on the processor.'
    : `The GPU cannot take this model, so it computes on the processor: ${message}.`;

export const lossOf = ({ message }: Failure): string => `The GPU failed, so the model goes on with the processor: ${message}.`;
