import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

let frames: (() => void)[] = [];
let now = 0;
const nextFrame = () => frames.splice(0).forEach((frame) => frame());

beforeEach(() => {
  [frames, now] = [[], 0];
  vi.resetModules();
  vi.stubGlobal('requestAnimationFrame', (frame: () => void) => frames.push(frame));
  vi.stubGlobal('performance', { now: () => now });
});
afterEach(() => vi.useRealTimers());

describe('drawing', () => {
  it('stops after 4 ms and goes on in the next frame, in the order that was asked for, unless somebody waits for all', async () => {
    const { drawSoon, allDrawn } = await import('../../src/dom/draw_queue.js');
    const drawn: string[] = [];
    const slow = (name: string) => () => {
      now += 3;
      drawn.push(name);
    };
    for (const name of ['a', 'b', 'c']) drawSoon(slow(name));
    expect(drawn).toEqual([]);
    nextFrame();
    expect(drawn).toEqual(['a', 'b']);
    nextFrame();
    expect(drawn).toEqual(['a', 'b', 'c']);
    await allDrawn();
    for (const name of ['d', 'e', 'f']) drawSoon(slow(name));
    let done = false;
    const all = allDrawn().then(() => (done = true));
    await Promise.resolve();
    expect(done).toBe(false);
    nextFrame();
    expect(drawn).toEqual(['a', 'b', 'c', 'd', 'e', 'f']);
    await all;
  });

  it('draws once for several requests', async () => {
    const { drawSoon } = await import('../../src/dom/draw_queue.js');
    const draw = vi.fn();
    drawSoon(draw);
    drawSoon(draw);
    nextFrame();
    nextFrame();
    expect(draw).toHaveBeenCalledTimes(1);
  });

  it('puts off what is not on the screen until nothing has changed for a moment', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const { drawLater, drawSoon } = await import('../../src/dom/draw_queue.js');
    const drawn: string[] = [];
    const far = () => drawn.push('far');
    const near = () => drawn.push('near');
    for (let letter = 0; letter < 5; letter += 1) {
      drawLater(far);
      drawSoon(near);
      nextFrame();
      vi.advanceTimersByTime(350);
    }
    expect(drawn).toEqual(Array(5).fill('near'));
    drawLater(() => drawn.push('farther'));
    vi.advanceTimersByTime(350);
    nextFrame();
    expect(drawn.slice(5)).toEqual([]);
    vi.advanceTimersByTime(50);
    nextFrame();
    expect(drawn.slice(5)).toEqual(['far']);
    nextFrame();
    expect(drawn.slice(5)).toEqual(['far', 'farther']);
  });

  it('draws what was put off sooner if it comes to the screen, if somebody waits for it, and for paper', async () => {
    const { allDrawn, drawAllNow, drawLater, drawSoonIfLater } = await import('../../src/dom/draw_queue.js');
    const [first, second] = [vi.fn(), vi.fn()];
    drawSoonIfLater(first);
    nextFrame();
    expect(first).not.toHaveBeenCalled();
    drawLater(first);
    drawLater(second);
    drawSoonIfLater(first);
    nextFrame();
    expect([first.mock.calls.length, second.mock.calls.length]).toEqual([1, 0]);
    const all = allDrawn();
    drawLater(first);
    nextFrame();
    await all;
    expect([first.mock.calls.length, second.mock.calls.length]).toEqual([2, 1]);
    drawLater(first);
    drawAllNow();
    expect(first).toHaveBeenCalledTimes(3);
    nextFrame();
    await allDrawn();
    expect(first).toHaveBeenCalledTimes(3);
  });
});
