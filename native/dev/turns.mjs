// Runs the builds and suites of `npm test`, two at a time.

/**
 * @typedef {object} Work
 * @property {string} name
 * @property {() => Promise<void>} run
 * @property {string[]} [after] names of works that must have ended before
 * @property {boolean} [wide] true: it keeps every core busy; other works use half of the cores
 */

/**
 * Runs two works at a time: while one configures or links, the other compiles. A work starts when the works in its
 * `after` have ended; among several, the first in the list starts. Wide works run at the end, one at a time. If a work
 * throws, no further work starts.
 * @param {Work[]} works
 */
export async function inTurns(works) {
  const waiting = works.filter(({ wide }) => !wide);
  const ended = new Set();
  let running = 0;
  let change = signal();
  const lane = async () => {
    while (waiting.length) {
      const ready = waiting.findIndex(({ after = [] }) => after.every((name) => ended.has(name)));
      if (ready < 0) {
        if (!running) throw new Error(`${waiting[0].name} waits for works that never run: ${waiting[0].after.join(', ')}`);
        await change.promise;
        continue;
      }
      const [{ name, run }] = waiting.splice(ready, 1);
      running += 1;
      try {
        await run();
        ended.add(name);
      } catch (error) {
        waiting.length = 0;
        throw error;
      } finally {
        running -= 1;
        change.resolve();
        change = signal();
      }
    }
  };
  await Promise.all([lane(), lane()]);
  for (const { run } of works.filter(({ wide }) => wide)) await run();
}

function signal() {
  let resolve;
  const promise = new Promise((done) => (resolve = done));
  return { promise, resolve };
}
