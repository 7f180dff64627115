// Drawing at most once a frame, however often the state changes in between.

/** A function that calls `draw` before the next frame. */
export function oncePerFrame(draw: () => void): () => void {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  };
}
