// How the workers of a script in a text are started where the engine has workers of browsers.

import { afterEach, expect, test, vi } from 'vitest';
import { workersOf } from '../src/pool/shared/port.ts';

afterEach(() => vi.unstubAllGlobals());

/** Starts a worker in an engine that refuses workers of the type `refused`; returns the types that were tried. */
function started(script: Parameters<typeof workersOf>[0], refused?: string): (string | undefined)[] {
  const types: (string | undefined)[] = [];
  class Worker {
    constructor(_: string | URL, { type }: { type?: string } = {}) {
      types.push(type);
      if (type === refused) throw new TypeError('not supported');
    }
    postMessage(): void {}
    terminate(): void {}
  }
  vi.stubGlobal('Worker', Worker);
  const port = workersOf(script)({ reply: () => {}, death: () => {} });
  expect(port).toBeDefined();
  port?.end();
  return types;
}

test('a text is a classic script, which pages on file: addresses can start; a module where there are no classic workers', () => {
  expect(started({ text: '0' })).toEqual(['classic']);
  expect(started({ text: '0' }, 'classic')).toEqual(['classic', 'module']);
});

test('a file is a module', () => {
  expect(started({ file: 'file:///worker.js' })).toEqual(['module']);
});
