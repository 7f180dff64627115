// Tells the page that a worker has ended. No event reports this, so the worker holds a lock until it ends, and the page
// waits for that lock (w3c.github.io/web-locks). Pages over plain HTTP have no locks, and are told nothing.

const locks = (): LockManager | undefined => navigator.locks;

/** In the worker: takes a lock that is held until the worker ends, and calls `announce` with its name. */
export function holdForLife(announce: (lock: string) => void): void {
  const name = `worker ${crypto.getRandomValues(new Uint32Array(4)).join(' ')}`;
  locks()?.request(name, () => {
    announce(name);
    return new Promise(() => {});
  }).catch(() => {});
}

/** Calls `ended`, on the page, once the worker with this lock has ended. */
export function whenEnded(lock: string, ended: () => void): void {
  locks()?.request(lock, ended).catch(() => {});
}
