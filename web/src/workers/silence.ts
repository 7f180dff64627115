// Notices that a worker is silent for too long.

/** Milliseconds between two checks. */
const every = 1000;

/**
 * Counts checks instead of reading a clock: a tab that was frozen then does not blame the worker for its own pause.
 *
 * @param most gives the number of checks in a row after which `onSilent` is called, once
 * @param onCheck is called at the checks before
 */
export function watchSilence(most: () => number, onSilent: () => void, onCheck = (): void => {}) {
  let timer: ReturnType<typeof setInterval> | undefined;
  let checks = 0;

  function check(): void {
    checks += 1;
    if (checks === most()) onSilent();
    else onCheck();
  }

  return {
    /** Begins to count, or begins anew: the worker was asked something, or has answered. */
    begin(): void {
      checks = 0;
      timer ??= setInterval(check, every);
    },
    end(): void {
      clearInterval(timer);
      timer = undefined;
    },
  };
}
