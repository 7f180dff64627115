// Why a test may be skipped in CI. A test that is skipped for another reason fails there, so that no test disappears
// because a program is missing. `npm test` prints each reason with the number of its tests.

const inFirefox = 'the other browser runs it';

/** The allowed reasons, as the tests give them, and why each is no fault of the machine. */
export const ALLOWED_SKIPS = new Map([
  ['there is a GPU', 'the test is about machines without one'],
  ['there is no /dev/full', 'only Linux has this file'],
  ['symbols are read from ELF files only', 'the other files are those of macOS and Windows'],
  ['this machine has an ARM64 processor', 'the core is tested on it without an emulator'],
  ['the same page as in Chromium', inFirefox],
  ['only the files of Chromium are read here', inFirefox],
  ['Firefox does not measure layout shift', inFirefox],
  ['Firefox emulates neither printing nor forced colors', inFirefox],
  ['Firefox cannot emulate printing', inFirefox],
  ['only Linux has WebKitGTK and its driver', inFirefox],
]);

/**
 * Describes the skipped tests, one line for each reason.
 * @param {{ name: string, reason: string }[]} skipped
 * @param {boolean} inCi true: a test that is skipped for a reason that is not on the list is a failure
 * @returns {{ lines: string[], failed: number }} `failed`: the number of such failures
 */
export function reportSkips(skipped, inCi) {
  const namesOf = new Map();
  for (const { name, reason } of skipped) namesOf.set(reason, [...(namesOf.get(reason) ?? []), name]);
  const lines = [];
  let failed = 0;
  for (const [reason, names] of namesOf) {
    const why = ALLOWED_SKIPS.get(reason);
    lines.push(`skipped: ${names.length} × ${reason}${why ? ` (${why})` : '; native/dev/skips.mjs does not allow this reason:'}`);
    if (why) continue;
    lines.push(...names.map((name) => `  ${name}`));
    if (inCi) failed += names.length;
  }
  return { lines, failed };
}
