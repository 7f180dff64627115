// Tells the page that a worker has ended, which no event does: the worker holds a lock as long as it lives, and the page
// waits for that lock (w3c.github.io/web-locks). Pages over plain HTTP have no locks, and learn nothing.

const locks = (): LockManager | undefined => navigator.locks;

/** In the worker: takes a lock for life, and calls `announce` with its name. */
export function holdForLife(announce: (lock: string) => void): void {
  const name = `worker ${crypto.getRandomValues(new Uint32Array(4)).join(' ')}`;
  locks()?.request(name, () => {
    announce(name);
    return new Promise(() => {});
  }).catch(() => {});
}

/** On the page: calls `ended` once the worker with this lock is gone. */
export function whenEnded(lock: string, ended: () => void): void {
  locks()?.request(lock, ended).catch(() => {});
}
