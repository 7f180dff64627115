// How often a test runs.

/**
 * Runs a test once: a race that shows in one of three runs would pass eight of nine times if it were tried twice. It is repeated
 * once for a fault of the browser alone, which the test names with what is known of it (`browserBug`, by browser), or the
 * browser's driver in its error.
 * @param {{ browserBug?: Record<string, string> }} test
 * @param {string} kind the browser
 * @param {() => Promise<string | undefined>} attempt
 * @returns {Promise<{ note?: string, again?: string }>} what the test says, and why it was repeated
 */
export async function attempted({ browserBug = {} }, kind, attempt) {
  try {
    return { note: await attempt() };
  } catch (error) {
    const bug = error.browserBug ?? browserBug[kind];
    if (bug === undefined) throw error;
    return { note: await attempt(), again: `${bug}: ${error.message}` };
  }
}
