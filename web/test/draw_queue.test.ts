import { beforeEach, describe, expect, it, vi } from 'vitest';

let frames: (() => void)[] = [];
let now = 0;
const nextFrame = () => frames.splice(0).forEach((frame) => frame());

beforeEach(() => {
  [frames, now] = [[], 0];
  vi.resetModules();
  vi.stubGlobal('requestAnimationFrame', (frame: () => void) => frames.push(frame));
  vi.stubGlobal('performance', { now: () => now });
});

describe('drawing', () => {
  it('stops after 8 ms and goes on in the next frame, in the order that was asked for', async () => {
    const { drawSoon, allDrawn } = await import('../src/parts/draw_queue.js');
    const drawn: string[] = [];
    const slow = (name: string) => () => {
      now += 5;
      drawn.push(name);
    };
    for (const name of ['a', 'b', 'c']) drawSoon(slow(name));
    let done = false;
    const all = allDrawn().then(() => (done = true));
    expect(drawn).toEqual([]);
    nextFrame();
    expect(drawn).toEqual(['a', 'b']);
    await Promise.resolve();
    expect(done).toBe(false);
    nextFrame();
    expect(drawn).toEqual(['a', 'b', 'c']);
    await all;
    await allDrawn();
  });

  it('draws once for several requests', async () => {
    const { drawSoon } = await import('../src/parts/draw_queue.js');
    const draw = vi.fn();
    drawSoon(draw);
    drawSoon(draw);
    nextFrame();
    nextFrame();
    expect(draw).toHaveBeenCalledTimes(1);
  });
});
