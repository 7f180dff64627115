// Measures the tasks of the page's main thread in processor time, so that waiting for other programs does not count.
// Only Chromium reports it.

/** Starts measuring. The returned function stops, and returns the milliseconds of the longest task since. */
export async function watchTasks(page) {
  await page.tracing.start({ categories: ['-*', 'toplevel', 'disabled-by-default-devtools.timeline'] });
  return async () => {
    const { traceEvents } = JSON.parse(Buffer.from(await page.tracing.stop()).toString());
    return longestOf(traceEvents);
  };
}

function longestOf(events) {
  const key = ({ pid, tid }) => `${pid} ${tid}`;
  const main = new Set(events.filter(({ name, args }) => name === 'thread_name' && args.name === 'CrRendererMain').map(key));
  const tasks = events.filter((event) => event.name === 'RunTask' && event.tdur !== undefined && main.has(key(event)));
  return tasks.reduce((most, { tdur }) => Math.max(most, tdur / 1000), 0);
}
