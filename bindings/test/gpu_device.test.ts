import { describe, expect, it, vi } from 'vitest';
import type { Storage } from '../src/gpu/buffers.ts';
import { Player } from '../src/gpu/device.ts';
import { accessOf, kernelText, type KernelSource } from '../src/gpu/pipelines.ts';
import { readPlan } from '../src/gpu/plan.ts';
import type { MultiheadError } from '../src/runtime/errors.ts';
import { asDevice, FakeBuffer, FakeDevice, type FakeKernel } from './fake_gpu.ts';

const text = `@group(0) @binding(0) var<uniform> p: vec4u;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;`;
const kernels: KernelSource[] = [
  { name: 'add', constants: ['WIDTH'], text },
  { name: 'sum', constants: [], text },
];
/** y = x + the parameter; y = the sum of x. */
const run: Record<string, FakeKernel> = {
  add: ([more], [x, y]) => x?.forEach((value, at) => y && (y[at] = value + (more as number))),
  sum: (_, [x, y]) => y?.fill(x?.reduce((sum, value) => sum + value, 0) ?? 0),
};

/** The error that rejects a promise. */
const rejectionOf = (promise: Promise<unknown>): Promise<MultiheadError> =>
  promise.then(
    () => expect.fail('expected an error'),
    (error: MultiheadError) => error,
  );

/** A dispatch, as the core packs it. */
const dispatch = (kernel: number, constants: number[], bindings: [number, number, number][], parameters: number[]) => [
  kernel,
  ...[...constants, 0, 0, 0, 0].slice(0, 4),
  ...[1, 1, 1, bindings.length, parameters.length],
  ...bindings.flat(),
  ...parameters,
];
const packed = (data: number[], scratch: number[], dispatches: number[][]) =>
  readPlan(new Uint32Array([data.length, scratch.length, dispatches.length, ...data, ...scratch, ...dispatches.flat()]));
/** out (operand 1) = in (operand 0) + more, for 4 words. */
const adding = (more: number, constant = 64) =>
  packed(
    [],
    [],
    [
      dispatch(
        0,
        [constant],
        [
          [0, 0, 4],
          [1, 0, 4],
        ],
        [more],
      ),
    ],
  );

function opened(device = new FakeDevice(run)) {
  const player = new Player(asDevice(device), kernels);
  const filled = (...words: number[]): Storage => {
    const storage = player.allocate(4 * words.length, 'x');
    player.write(storage.buffer, new Uint32Array(words));
    return storage;
  };
  const play = (plan: ReturnType<typeof readPlan>, from: Storage, to: Storage) =>
    player.play(
      plan,
      [from, to].map((storage) => ({ storage, offset: 0 })),
      [from],
      [to],
    );
  const read = async (storage: Storage, bytes = 16, offset = 0) => [...new Uint32Array(await player.read({ storage, offset }, bytes))];
  return { device, player, filled, play, read };
}

describe('the text of a kernel', () => {
  const source = { name: 'x', constants: ['A', 'B'], text: '//#if A\nenable f16;\n//#if B\nboth\n//#else\nonly a\n//#end\n//#end\nall' };

  it('gets its constants, and has only the lines for them', () => {
    expect(kernelText(source, [0, 1])).toBe('const A = 0u;\nconst B = 1u;\nall');
    expect(kernelText(source, [1, 0])).toBe('enable f16;\nconst A = 1u;\nconst B = 0u;\nonly a\nall');
    expect(kernelText(source, [2, 3])).toBe('enable f16;\nconst A = 2u;\nconst B = 3u;\nboth\nall');
  });

  it('says which buffers it writes', () => {
    expect(accessOf(text)).toBe('rw');
    expect(accessOf('@binding(2) var<storage,read_write>y:u32; @binding(1) var<storage,read>x:u32;')).toBe('rw');
  });
});

describe('a plan', () => {
  it('has its dispatches in order, with data, scratch buffers and their own parameters', async () => {
    const { device, player, filled, read } = opened();
    const [a, b] = [filled(1, 2, 3, 4), filled(0, 0, 0, 0)];
    // scratch = a + 10; b = data + 5 from word 64 of the data on; then b = the sum of scratch.
    const data = [...new Array<number>(64).fill(0), 7, 8, 9, 10];
    const plan = packed(
      data,
      [4],
      [
        dispatch(
          0,
          [64],
          [
            [0, 0, 4],
            [3, 0, 4],
          ],
          [10],
        ),
        dispatch(
          0,
          [64],
          [
            [2, 64, 4],
            [1, 0, 4],
          ],
          [5],
        ),
      ],
    );
    player.play(
      plan,
      [a, b].map((storage) => ({ storage, offset: 0 })),
      [a],
      [b],
    );
    expect(await read(b)).toEqual([12, 13, 14, 15]);
    expect(device.pipelinesMade).toBe(1);
    const total = packed(
      [],
      [],
      [
        dispatch(
          1,
          [],
          [
            [0, 0, 4],
            [1, 0, 4],
          ],
          [],
        ),
      ],
    );
    player.play(
      total,
      [b, a].map((storage) => ({ storage, offset: 0 })),
      [b],
      [a],
    );
    expect(await read(a)).toEqual([54, 54, 54, 54]);
    expect(device.openScopes).toBe(0);
  });

  it('is submitted at once when its pipelines are there, and shares bind groups with its like', async () => {
    const { device, player, filled, play, read } = opened();
    const [a, b] = [filled(1, 2, 3, 4), filled(0, 0, 0, 0)];
    play(adding(1), a, b);
    await read(b);
    const [groups, submissions] = [device.groupsMade, player.submissions];
    for (let more = 2; more < 40; more += 1) play(adding(more), a, b);
    expect(player.submissions).toBe(submissions + 38);
    expect(device.groupsMade).toBe(groups);
    expect(await read(b)).toEqual([40, 41, 42, 43]);
  });

  it('keeps parameters apart when the ring of uniforms begins again or grows', async () => {
    const { player, filled, read } = opened();
    const [a, b] = [filled(0, 1, 2, 3), filled(0, 0, 0, 0)];
    const places = [a, b].map((storage) => ({ storage, offset: 0 }));
    for (const count of [100, 200, 300, 5]) {
      const dispatches = Array.from({ length: count }, (_, at) =>
        dispatch(
          0,
          [64],
          [
            [0, 0, 4],
            [1, 0, 4],
          ],
          [at],
        ),
      );
      player.play(packed([], [], dispatches), places, [a], [b]);
      expect(await read(b)).toEqual([count - 1, count, count + 1, count + 2]);
    }
  });

  it('reads parts of a buffer, also of odd bytes', async () => {
    const { player, filled } = opened();
    const a = filled(0x03020100, 0x07060504);
    expect([...new Uint8Array(await player.read({ storage: a, offset: 2 }, 3))]).toEqual([2, 3, 4]);
    expect((await player.read({ storage: a, offset: 0 }, 0)).byteLength).toBe(0);
    const odd = player.allocate(7, 'x');
    player.write(odd.buffer, Uint8Array.of(9, 1, 2, 3, 4, 5, 6, 7, 9).subarray(1, 8));
    expect([...new Uint8Array(await player.read({ storage: odd, offset: 0 }, 7))]).toEqual([1, 2, 3, 4, 5, 6, 7]);
  });
});

describe('a kernel that is still compiled', () => {
  it('holds later calls, reads and releases back, in order', async () => {
    const device = new FakeDevice(run);
    let compiled = (): void => {};
    const { player, filled, play, read } = opened(device);
    const [a, b, c] = [filled(1, 2, 3, 4), filled(0, 0, 0, 0), filled(0, 0, 0, 0)];
    play(adding(1, 64), a, b);
    await read(b);
    device.compiling = new Promise<void>((resolve) => (compiled = resolve));
    play(adding(1, 128), b, c);
    play(adding(1, 64), c, b); // its pipeline is there, but what it reads is not
    const result = read(b);
    player.release(c);
    const other = player.allocate(16, 'x');
    expect(other.buffer).not.toBe(c.buffer);
    expect(player.submissions).toBe(1);
    compiled();
    expect(await result).toEqual([4, 5, 6, 7]);
    expect(player.allocate(16, 'x').buffer).toBe(c.buffer);
  });
});

describe('buffers', () => {
  it('are used again by tensors of about their length', () => {
    const { device, player } = opened();
    const first = player.allocate(1000, 'x');
    player.release(first);
    expect(player.allocate(900, 'x').buffer).toBe(first.buffer);
    expect(player.allocate(900, 'x').buffer).not.toBe(first.buffer);
    expect(device.buffers.every(({ size }) => size % 4 === 0)).toBe(true);
  });

  it('are refused when they are longer than the device has them', () => {
    const { player } = opened();
    expect(() => player.allocate(2 ** 20 + 1, 'out')).toThrow(/^out: out of memory, asked for 1048577 bytes, with a GPU whose|^out: out of memory/);
  });

  it('are destroyed at the end', () => {
    const { device, player } = opened();
    player.release(player.allocate(1000, 'x'));
    let ended = false;
    player.close(() => (ended = true));
    expect(ended).toBe(true);
    expect(device.buffers.every(({ destroyed }) => destroyed)).toBe(true);
  });
});

describe('what fails', () => {
  it('a kernel that the driver refuses rejects its results and what is computed of them', async () => {
    const device = new FakeDevice(run);
    device.refused.add('sum');
    const { filled, play, read } = opened(device);
    const [a, b, c] = [filled(1, 2, 3, 4), filled(0, 0, 0, 0), filled(0, 0, 0, 0)];
    play(
      packed(
        [],
        [],
        [
          dispatch(
            1,
            [],
            [
              [0, 0, 4],
              [1, 0, 4],
            ],
            [],
          ),
        ],
      ),
      a,
      b,
    );
    play(adding(1), b, c);
    for (const storage of [b, c]) {
      const error = await rejectionOf(read(storage));
      expect(error.code).toBe('E_GPU');
      expect(error.message).toMatch(/"sum".*line 3: unknown word/);
    }
    expect(await read(a)).toEqual([1, 2, 3, 4]);
    play(adding(1), a, c);
    expect(await read(c)).toEqual([2, 3, 4, 5]);
  });

  it('memory that is not there is E_MEMORY', async () => {
    const { player, filled, play, read } = opened();
    const missing = player.allocate(2 ** 19, 'x');
    expect((await rejectionOf(read(missing))).code).toBe('E_MEMORY');
    play(adding(1), filled(1, 2, 3, 4), missing);
    expect((await rejectionOf(read(missing))).code).toBe('E_MEMORY');
  });

  it('a call that the device refuses is E_GPU with its words', async () => {
    const { filled, play, read } = opened();
    const [a, b] = [filled(1, 2, 3, 4), filled(0, 0, 0, 0)];
    play(
      packed(
        [],
        [],
        [
          dispatch(
            0,
            [64],
            [
              [0, 1, 4],
              [1, 0, 4],
            ],
            [1],
          ),
        ],
      ),
      a,
      b,
    );
    const error = await rejectionOf(read(b));
    expect([error.code, error.got]).toEqual(['E_GPU', 'binding 1']);
  });

  it('a lost device is E_GPU_LOST', async () => {
    const { device, player, filled, play, read } = opened();
    const [a, b] = [filled(1, 2, 3, 4), filled(0, 0, 0, 0)];
    play(adding(1), a, b);
    const result = read(b);
    device.lose('the driver was reset');
    const error = await rejectionOf(result);
    expect(error.code).toBe('E_GPU_LOST');
    expect(error.message).toMatch(/the driver was reset/);
    expect((await rejectionOf(read(a))).code).toBe('E_GPU_LOST');
    expect(player.lost?.code).toBe('E_GPU_LOST');
  });
});

describe('a device that hangs', () => {
  it('is given up after two minutes, unless it ends something meanwhile', async () => {
    vi.useFakeTimers();
    const mapped = vi.spyOn(FakeBuffer.prototype, 'mapAsync').mockImplementation(() => new Promise(() => {}));
    const { player, filled } = opened();
    const storage = filled(1, 2, 3, 4);
    const first = rejectionOf(player.read({ storage, offset: 0 }, 16));
    let isOver = false;
    void first.then(() => (isOver = true));
    await vi.advanceTimersByTimeAsync(100_000);
    await player.submitted(); // an end
    await vi.advanceTimersByTimeAsync(100_000);
    expect(isOver).toBe(false);
    await vi.advanceTimersByTimeAsync(60_000);
    const message = 'gpu: expected a device that ends what it does within 120 s, got none: it hangs';
    expect(await first).toMatchObject({ code: 'E_GPU', message });
    const second = rejectionOf(player.read({ storage, offset: 0 }, 16));
    await vi.advanceTimersByTimeAsync(30_000);
    expect(await second).toMatchObject({ code: 'E_GPU', message });
    const end = vi.fn();
    player.close(end);
    expect(end).toHaveBeenCalledOnce();
    expect(vi.getTimerCount()).toBe(0);
    mapped.mockRestore();
    vi.useRealTimers();
  });
});
