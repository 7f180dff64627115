// Tensors, memory and errors of mh.gpu() on a device that JavaScript plays; the kernels are tested in Chromium (tests/gpu).

import type { Gpu, Multihead } from 'multihead';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { errorOf, loadBuild } from './builds.ts';
import { asDevice, FakeBuffer, FakeDevice } from './fake_gpu.ts';

const storage = 0x80 | 0x4 | 0x8;

describe('mh.gpu()', () => {
  let mh: Multihead;
  let fake: FakeDevice;
  let gpu: Gpu;
  beforeEach(async () => {
    mh = await loadBuild('relaxed');
    fake = new FakeDevice();
    gpu = await mh.gpu({ device: asDevice(fake) });
  });
  afterEach(() => {
    mh.dispose();
    expect(fake.openScopes).toBe(0);
  });

  const failure = async (promise: Promise<unknown>) =>
    promise.then(
      () => expect.fail('expected an error'),
      ({ code, message }: { code: string; message: string }) => ({ code, message }),
    );

  it('copies numbers of every dtype to the GPU and back', async () => {
    const x = gpu.tensor(new Float32Array([1, NaN, -Infinity]), [3]);
    expect([x.shape, x.dtype, x.size, x.offset]).toEqual([[3], 'f32', 3, 0]);
    expect(await x.read()).toEqual(new Float32Array([1, NaN, -Infinity]));
    const nested = gpu.tensor([
      [1, 2],
      [3, 4],
    ]);
    expect([nested.shape, await nested.read()]).toEqual([[2, 2], new Float32Array([1, 2, 3, 4])]);
    expect(await gpu.tensor(new Uint8Array([1, 0, 7]), [3]).read()).toEqual(new Uint8Array([1, 0, 7]));
    const half = gpu.tensor(new Float32Array([1.5, 65504, -2]), [3], { dtype: 'f16' });
    expect([half.dtype, await half.toFloat32()]).toEqual(['f16', new Float32Array([1.5, 65504, -2])]);
    expect(await gpu.tensor(mh.tensor(new Float32Array([5]), [1])).read()).toEqual(new Float32Array([5]));
    expect(await gpu.tensor(new Float32Array(0), [0, 4]).read()).toEqual(new Float32Array(0));
    expect(JSON.stringify(nested)).toBe('{"dtype":"f32","shape":[2,2]}');
  });

  it('counts what its tensors hold, and frees it by dispose, scopes and the end', async () => {
    expect(mh.memory()).toMatchObject({ live: 0, gpu: 0 });
    const x = gpu.tensor(new Float32Array(1000), [1000]);
    expect(mh.memory()).toMatchObject({ live: 1, bytes: 0 });
    expect(mh.memory().gpu).toBeGreaterThanOrEqual(4000);
    x.dispose();
    x.dispose();
    expect(mh.memory()).toMatchObject({ live: 0, gpu: 0 });
    expect(errorOf(() => x.buffer).code).toBe('E_DISPOSED');
    expect((await failure(x.read())).code).toBe('E_DISPOSED');
    const kept = mh.scope(() => {
      gpu.tensor(new Float32Array(10), [10]);
      return gpu.tensor(new Float32Array(20), [20]);
    });
    expect(mh.memory().live).toBe(1);
    const cache = gpu.cache({ numKvHeads: 2, headDim: 8, capacity: 16, dtype: 'f16' });
    expect([cache.bytes, cache.length(), mh.memory().live]).toEqual([1024, 0, 2]);
    expect(mh.memory().gpu).toBe(1024 + 256);
    const reading = failure(kept.read());
    gpu.dispose();
    gpu.dispose();
    expect([kept.disposed, cache.disposed, gpu.disposed, fake.isDestroyed]).toEqual([true, true, true, false]);
    expect(mh.memory()).toMatchObject({ live: 0, gpu: 0, bytes: 0 });
    expect((await reading).code).toBe('E_DISPOSED');
    expect(fake.buffers.every(({ destroyed }) => destroyed)).toBe(true);
    cache.dispose();
    expect(errorOf(() => gpu.tensor([1], [1])).code).toBe('E_DISPOSED');
    expect(errorOf(() => gpu.attention(kept, kept, kept)).code).toBe('E_DISPOSED');
  });

  it('ends with its instance', () => {
    const x = gpu.tensor(new Float32Array(10), [10]);
    mh.dispose();
    expect([x.disposed, gpu.disposed]).toEqual([true, true]);
    x.dispose();
    expect(errorOf(() => gpu.tensor([1], [1])).code).toBe('E_DISPOSED');
  });

  it("uses a caller's buffer, which stays the caller's", async () => {
    const buffer = new FakeBuffer(fake, { size: 512, usage: storage });
    buffer.words().set(Array.from({ length: 128 }, (_, at) => at));
    const given = buffer as unknown as GPUBuffer;
    const words = (data: Float32Array) => [...new Uint32Array(data.buffer)];
    const x = gpu.wrap(given, { shape: [2, 3] });
    expect(words(await x.read())).toEqual([0, 1, 2, 3, 4, 5]);
    const strided = gpu.wrap(given, { shape: [2, 3], strides: [1, 10], offset: 256 });
    expect(words(await strided.read())).toEqual([64, 74, 84, 65, 75, 85]);
    expect(x.buffer).toBe(given);
    expect(mh.memory()).toMatchObject({ live: 2, gpu: 0 });
    x.dispose();
    expect(buffer.destroyed).toBe(false);
    strided.dispose();
    const refused = (options: object, of: unknown = given) => {
      const { code, argument } = errorOf(() => gpu.wrap(of as GPUBuffer, options as never));
      return `${code} ${argument}`;
    };
    expect(refused({ shape: [129] })).toBe('E_SHAPE buffer');
    expect(refused({ shape: [2, 3], strides: [100, 14] })).toBe('E_SHAPE buffer');
    expect(refused({ shape: [2], strides: [1, 1] })).toBe('E_SHAPE strides');
    expect(refused({ shape: [2], offset: 4 })).toBe('E_OPTION offset');
    expect(refused({ shape: [2], dtype: 'f64' })).toBe('E_OPTION dtype');
    expect(refused({ shape: [2], sizes: 1 })).toBe('E_OPTION sizes');
    expect(refused({ shape: [2] }, {})).toBe('E_OPTION buffer');
    expect(refused({ shape: [2] }, new FakeBuffer(fake, { size: 512, usage: 0x8 }))).toBe('E_OPTION buffer');
  });

  it('throws the errors of the CPU, word for word, and keeps nothing', () => {
    const x = gpu.tensor(new Float32Array(24), [1, 2, 3, 4]);
    const [cpu, other] = [mh.tensor(new Float32Array(24), [1, 2, 3, 4]), { data: new Float32Array(40), shape: [1, 2, 4, 5] }];
    const before = mh.memory();
    const calls: [string, unknown[], unknown[]][] = [
      ['another width', [x, other, other], [cpu, other, other]],
      ['no axis', [x, { data: new Float32Array(4), shape: [4] }, x], [cpu, { data: new Float32Array(4), shape: [4] }, cpu]],
      ['an unknown option', [x, x, x, { causall: true }], [cpu, cpu, cpu, { causall: true }]],
      ['a wrong option', [x, x, x, { softcap: -1 }], [cpu, cpu, cpu, { softcap: -1 }]],
      [
        'a wrong mask',
        [x, x, x, { mask: { data: new Uint8Array(2), shape: [1, 2] } }],
        [cpu, cpu, cpu, { mask: { data: new Uint8Array(2), shape: [1, 2] } }],
      ],
      ['no array', [x, x, 3], [cpu, cpu, 3]],
    ];
    for (const [name, onGpu, onCpu] of calls) {
      const [ofGpu, ofCpu] = [gpu, mh].map((each) =>
        errorOf(() => (each.attention as (...given: unknown[]) => unknown)(...(each === gpu ? onGpu : onCpu))),
      );
      const known = (text?: string) => text?.replace('dropout, ', '');
      expect([known(ofGpu?.message), ofGpu?.code], name).toEqual([known(ofCpu?.message), ofCpu?.code]);
    }
    expect(errorOf(() => gpu.attention(x, x, x, { dropout: { probability: 0.5 } } as never)).message).toMatch(
      /^attention: there is no "dropout" \(the GPU has no dropout/,
    );
    expect(errorOf(() => gpu.attention(x, x, x, { out: x })).message).toMatch(/^out: expected a tensor that shares its memory with no other/);
    expect(errorOf(() => mh.attention(x as never, cpu, cpu)).code).toBe('E_OPTION');
    expect(mh.memory()).toMatchObject({ live: before.live, bytes: before.bytes, gpu: before.gpu });
    expect(fake.submissions).toBe(0);
  });

  it('multiplies rows of any width', () => {
    const [x, weight] = [gpu.tensor(new Float32Array(24), [2, 12]), gpu.tensor(new Float32Array(36), [3, 12])];
    expect(gpu.linear(x, weight, { bias: { data: new Float32Array(3), shape: [3] } }).shape).toEqual([2, 3]);
    const odd = { data: new Float32Array(6), shape: [1, 6] };
    expect(gpu.linear(odd, odd).shape).toEqual([1, 1]);
    const [ofGpu, ofCpu] = [gpu, mh].map((each) => errorOf(() => each.linear(odd, { data: new Float32Array(24), shape: [2, 12] })));
    expect(ofGpu?.message).toBe(ofCpu?.message);
    const buffer = new FakeBuffer(fake, { size: 512, usage: storage }) as unknown as GPUBuffer;
    const strided = gpu.wrap(buffer, { shape: [2, 12], strides: [16, 1] });
    expect(errorOf(() => gpu.linear(strided, weight)).message).toBe('x: expected a tensor without gaps, got one with strides');
  });

  it('takes tensors of its own device alone', async () => {
    const elsewhere = await mh.gpu({ device: asDevice(new FakeDevice()) });
    const x = elsewhere.tensor(new Float32Array(4), [1, 1, 2, 2]);
    expect(errorOf(() => gpu.attention(x, x, x)).message).toBe('q: expected a tensor of the same GPU, got one of another');
  });

  it('says what is missing', async () => {
    const code = async (options: object) => (await failure(mh.gpu(options as never))).code;
    expect(await code({ devise: 1 })).toBe('E_OPTION');
    expect(await code({ device: 1 })).toBe('E_OPTION');
    expect(await code({ adapter: {} })).toBe('E_OPTION');
    expect(await code({ powerPreference: 'most' })).toBe('E_OPTION');
    expect(await code({ device: asDevice(fake), signal: AbortSignal.abort() })).toBe('E_ABORTED');
    const adapter = (requestDevice: () => Promise<unknown>) => ({ adapter: { features: new Set(), limits: {}, requestDevice } });
    expect(await failure(mh.gpu(adapter(() => Promise.reject(new Error('too many devices'))) as never))).toEqual({
      code: 'E_GPU',
      message: "gpu: expected a device with the adapter's limits, got too many devices",
    });
    let opening: Promise<{ code: string }> | undefined;
    const controller = new AbortController();
    const late = new FakeDevice();
    let give = (): void => {};
    const asked = new Promise<void>((requested) => {
      const request = () => new Promise((resolve) => ((give = () => resolve(late)), requested()));
      opening = failure(mh.gpu({ ...adapter(request), signal: controller.signal } as never));
    });
    await asked;
    controller.abort();
    expect((await opening)?.code).toBe('E_ABORTED');
    give();
    await expect.poll(() => late.isDestroyed).toBe(true);
  });
});
