// Remembers which suites passed, and what they were run on.
import { readFileSync, writeFileSync } from 'node:fs';

/** The outcomes of suites in which everything passed, in a file. */
export class Passed {
  #path;
  #machine;
  #suites;

  /**
   * @param {string} path the file; one that is missing, unreadable or of another machine counts as empty
   * @param {string} machine what besides its files decides the outcome of a suite
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

  /** Stores an outcome. A failure makes forget what was known of the suite. */
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
