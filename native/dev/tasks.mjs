// Runs the builds and suites of `npm test`, two at a time.

/**
 * @typedef {object} Task
 * @property {string} name
 * @property {() => Promise<void>} run
 * @property {string[]} [after] names of tasks that must have ended before
 * @property {boolean} [waits] true: it waits most of its time, as tests in browsers do, and runs beside two others
 */

/**
 * Runs two tasks at a time: while one configures or links, the other compiles. A third runs beside them if it waits
 * most of its time. A task starts when those in its `after` have ended; among several, the first in the list
 * starts. If a task throws, no further task starts.
 * @param {Task[]} tasks
 */
export async function runTasks(tasks) {
  let waiting = [...tasks];
  const ended = new Set();
  let running = 0;
  let change = signal();
  const lane = async (isMine) => {
    while (waiting.some(isMine)) {
      const next = waiting.find((task) => isMine(task) && (task.after ?? []).every((name) => ended.has(name)));
      if (!next) {
        if (!running) {
          const { name, after } = waiting.find(isMine);
          throw new Error(`${name} waits for tasks that never run: ${after.join(', ')}`);
        }
        await change.promise;
        continue;
      }
      waiting = waiting.filter((task) => task !== next);
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
