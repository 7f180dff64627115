// Runs the builds and suites of `npm test`, two at a time.

/**
 * @typedef {object} Work
 * @property {string} name
 * @property {() => Promise<void>} run
 * @property {string[]} [after] names of works that must have ended before
 * @property {boolean} [waits] true: it waits most of its time, as tests in browsers do, and runs beside two others
 */

/**
 * Runs two works at a time: while one configures or links, the other compiles. A third runs beside them if it waits
 * most of its time. A work starts when the works in its `after` have ended; among several, the first in the list
 * starts. If a work throws, no further work starts.
 * @param {Work[]} works
 */
export async function inTurns(works) {
  let waiting = [...works];
  const ended = new Set();
  let running = 0;
  let change = signal();
  const lane = async (isMine) => {
    while (waiting.some(isMine)) {
      const next = waiting.find((work) => isMine(work) && (work.after ?? []).every((name) => ended.has(name)));
      if (!next) {
        if (!running) {
          const { name, after } = waiting.find(isMine);
          throw new Error(`${name} waits for works that never run: ${after.join(', ')}`);
        }
        await change.promise;
        continue;
      }
      waiting = waiting.filter((work) => work !== next);
      running += 1;
      try {
        await next.run();
        ended.add(next.name);
      } catch (error) {
        waiting = [];
        throw error;
      } finally {
        running -= 1;
        change.resolve();
        change = signal();
      }
    }
  };
  const busy = ({ waits }) => !waits;
  await Promise.all([lane(busy), lane(busy), lane(({ waits }) => waits)]);
}

function signal() {
  let resolve;
  const promise = new Promise((done) => (resolve = done));
  return { promise, resolve };
}
