// Remembers which suites passed, and on which files and machine.
import { readFileSync, writeFileSync } from 'node:fs';

/** Stores the outcomes of suites that passed completely, in a file. */
export class Passed {
  #path;
  #machine;
  #suites;

  /**
   * @param {string} path the file; a file that is missing, unreadable or from another machine counts as empty
   * @param {string} machine everything besides its files that decides the outcome of a suite
   */
  constructor(path, machine) {
    this.#path = path;
    this.#machine = machine;
    this.#suites = read(path, machine);
  }

  /** The outcome that was stored for a suite with this fingerprint of its files, or undefined. */
  find(name, fingerprint) {
    const known = Object.hasOwn(this.#suites, name) ? this.#suites[name] : undefined;
    return known?.fingerprint === fingerprint ? known.outcome : undefined;
  }

  /** Stores an outcome. A failed outcome deletes the stored one. */
  store(name, fingerprint, { passed, failed, skipped }) {
    delete this.#suites[name];
    if (failed === 0 && passed > 0) {
      this.#suites[name] = { fingerprint, outcome: { passed, failed, skipped, output: '' } };
    }
    writeFileSync(this.#path, JSON.stringify({ machine: this.#machine, suites: this.#suites }, null, 1));
  }
}

function read(path, machine) {
  try {
    const stored = JSON.parse(readFileSync(path, 'utf8'));
    return stored.machine === machine ? { ...stored.suites } : {};
  } catch {
    return {};
  }
}
