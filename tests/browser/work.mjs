// Counts what the page's main thread does, for tests of what must not take long: counts do not depend on the machine.
// `npm run bench -- page` measures the times.

/**
 * Starts counting. The returned function gives the numbers since: `painted`, of canvases that were painted (again), and
 * `changes`, of the document's elements, attributes and texts. `window.work` holds the canvases themselves.
 */
export async function countWork(page) {
  await page.evaluate(() => {
    window.work = { painted: [], changes: 0 };
    const real = CanvasRenderingContext2D.prototype.drawImage;
    CanvasRenderingContext2D.prototype.drawImage = function (...rest) {
      window.work.painted.push(this.canvas);
      return real.apply(this, rest);
    };
    new MutationObserver((list) => (window.work.changes += list.length)).observe(document.body, {
      ...{ subtree: true, childList: true, attributes: true, characterData: true },
    });
  });
  return () => page.evaluate(() => ({ painted: window.work.painted.length, changes: window.work.changes }));
}
