// Draws a few items per frame, so that a new sentence with many heads never blocks the page for long: items on the
// screen first, all other items once nothing has changed for a moment, one in a frame.

/**
 * Milliseconds of drawing in one frame. At least one item is drawn per frame. The browser then needs several times as long
 * to lay out and paint what was drawn.
 */
const budget = 4;
/**
 * Milliseconds without a change before off-screen items are drawn: longer than between two keystrokes, two pointer moves or
 * two readings of heads that train.
 */
const pause = 400;

const soon = new Set<() => void>();
const later = new Set<() => void>();
let frame: number | undefined;
/** True if nothing has changed for `pause`. */
let rested = false;
let timer: ReturnType<typeof setTimeout> | undefined;
let listeners: (() => void)[] = [];

function work(): void {
  frame = undefined;
  const end = listeners.length > 0 ? Infinity : performance.now() + budget;
  const [next] = later;
  if (rested && soon.size === 0 && next) drawSoon(next);
  for (const draw of soon) {
    soon.delete(draw);
    draw();
    if (performance.now() >= end) break;
  }
  if (soon.size > 0 || (rested && later.size > 0)) frame ??= requestAnimationFrame(work);
  else if (later.size === 0) {
    for (const done of listeners) done();
    listeners = [];
  }
}

/** Calls `draw` once in one of the next frames, even if it is requested several times until then. */
export function drawSoon(draw: () => void): void {
  later.delete(draw);
  soon.add(draw);
  frame ??= requestAnimationFrame(work);
}

/**
 * Calls `draw` after `pause` without another call of drawLater(). Acts like drawSoon() if somebody waits for
 * allDrawn().
 */
export function drawLater(draw: () => void): void {
  if (listeners.length > 0) return drawSoon(draw);
  soon.delete(draw);
  later.add(draw);
  rested = false;
  clearTimeout(timer);
  timer = setTimeout(() => {
    rested = true;
    frame ??= requestAnimationFrame(work);
  }, pause);
}

/** Calls `draw` in one of the next frames if drawLater() has put it off. */
export function drawSoonIfLater(draw: () => void): void {
  if (later.has(draw)) drawSoon(draw);
}

function drawRest(): void {
  clearTimeout(timer);
  for (const draw of later) drawSoon(draw);
}

/** Draws all waiting items before it returns. Printing needs this, because it shows the page as it is now. */
export function drawAllNow(): void {
  while (soon.size + later.size > 0) {
    drawRest();
    for (const draw of soon) {
      soon.delete(draw);
      draw();
    }
  }
}

/** Resolves once all requested items are drawn, all of them in the next frame. Tests and the console wait for this. */
export function allDrawn(): Promise<void> {
  if (soon.size + later.size === 0) return Promise.resolve();
  const drawn = new Promise<void>((done) => listeners.push(done));
  drawRest();
  return drawn;
}
