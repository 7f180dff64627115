import { describe, expect, it } from 'vitest';
import { isOfGpu, lossOf, placeOf, refusalOf } from '../../src/model/place.js';

const placed = (device: string, workers = 0, refusal = '') => Object.values(placeOf({ device, workers }, refusal));

describe('where a model computes', () => {
  it('is said with the reason', () => {
    expect(placed('cpu')).toEqual(['1 thread', '', '']);
    expect(placed('cpu', 2)).toEqual(['2 workers', '', '']);
    const maps = "The processor computes gradients, which an experiment's estimates need.";
    expect(placed('gpu: apple m2; not measured yet', 2)).toEqual(['GPU', `The GPU computes: apple m2; not measured yet. ${maps}`, '']);
    const slow = 'cpu: faster than gpu: apple m2; tokens take 9.0 ms, on the CPU 2.0 ms';
    expect(placed(slow, 1)).toEqual(['1 worker', 'The processor is faster than the GPU: apple m2; tokens take 9.0 ms, on the CPU 2.0 ms.', '']);
    const none = 'cpu: gpu: expected an adapter, got none: the browser knows no GPU here, or does not use it';
    expect(placed(none)).toEqual(['1 thread', 'The GPU computes nothing: the browser knows no GPU here, or does not use it.', '']);
    expect(placed('cpu: weights: out of memory')).toEqual(['1 thread', 'The GPU computes nothing: weights: out of memory.', '']);
    expect(placed('cpu', 0, 'Lost.')).toEqual(['1 thread', 'Lost.', 'Lost.']);
  });

  it('changes after errors of the GPU alone', () => {
    const errors = [{ code: 'E_GPU' }, { code: 'E_GPU_LOST' }, { code: 'E_MEMORY' }, { code: 'E_OPTION', argument: 'device' }] as const;
    expect(errors.map((error) => isOfGpu({ message: '', ...error }))).toEqual([true, true, true, true]);
    expect([{}, { code: 'E_OPTION', argument: 'source' } as const].map((error) => isOfGpu({ message: '', ...error }))).toEqual([false, false]);
    expect(refusalOf({ code: 'E_GPU', message: 'x' })).toBe('This browser offers pages no GPU, so the model computes on the processor.');
    expect(refusalOf({ code: 'E_OPTION', message: 'heads wider than 256' })).toMatch(/: heads wider than 256\.$/);
    expect(lossOf({ message: 'the device is lost' })).toBe('The GPU failed, so the model goes on with the processor: the device is lost.');
  });
});
