// Draws maps a few at a time, so that a new sentence with many heads never blocks the page for long.

/** Milliseconds of drawing in one frame. At least one map is drawn. */
const budget = 8;

const waiting = new Set<() => void>();
let frame: number | undefined;
let listeners: (() => void)[] = [];

function work(): void {
  frame = undefined;
  const end = performance.now() + budget;
  for (const draw of waiting) {
    waiting.delete(draw);
    draw();
    if (performance.now() >= end) break;
  }
  if (waiting.size > 0) {
    frame = requestAnimationFrame(work);
    return;
  }
  for (const done of listeners) done();
  listeners = [];
}

/** Calls `draw` in one of the next frames, once, however often it is asked for until then. */
export function drawSoon(draw: () => void): void {
  waiting.add(draw);
  frame ??= requestAnimationFrame(work);
}

/** Resolves once everything asked for is drawn. */
export const allDrawn = (): Promise<void> =>
  waiting.size === 0 ? Promise.resolve() : new Promise((done) => listeners.push(done));
