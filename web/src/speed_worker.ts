// The worker of the speed section: prepares the implementations, measures them in turns, and reports after each round.

import { firstLine, makeContenders } from './speed/contenders.js';
import { inTurns, largestDifference, usualPace, warmUp, type Contender } from './speed/measure.js';
import { sizes, type Engine, type Row, type SpeedAnswer, type SpeedRequest } from './speed/messages.js';
import { createPolicy } from './workers/trusted_types.js';
import { holdForLife } from './workers/worker_life.js';

/** The part of DedicatedWorkerGlobalScope that is used; TypeScript's DOM library does not declare it. */
interface Scope {
  onmessage: ((event: MessageEvent<SpeedRequest>) => void) | null;
  postMessage(answer: SpeedAnswer): void;
}
const scope = self as unknown as Scope;

/** The folder of this script, where the build puts the script of the pool's workers, too. */
const { href: folder } = new URL('.', self.location.href);
// The pool gives the address of its workers as a text. No other address passes.
createPolicy('default', (address) => {
  const { href } = new URL(address, folder);
  return href.startsWith(folder) && /^pool_worker-[\w-]+\.js$/.test(href.slice(folder.length)) ? href : null;
});

holdForLife((lock) => scope.postMessage({ kind: 'lock', lock }));

interface Runner {
  readonly contender: Contender;
  readonly calls: number;
  readonly difference: number;
}

async function measure({ size, peers }: SpeedRequest): Promise<void> {
  const say = (what: string) => scope.postMessage({ kind: 'step', what });
  const { mh, pool, plain, all } = await makeContenders(sizes[size], peers, say);
  await plain.run();
  const expected = await plain.output();
  const engine: Engine = { simd: mh.backend.simd, workers: pool.backend.workers, why: mh.backend.why };
  const failures = new Map<string, string>();
  const runners: Runner[] = [];
  for (const made of all) {
    if ('failure' in made) {
      failures.set(made.name, made.failure);
      continue;
    }
    say(`Warming up: ${made.name}`);
    try {
      const calls = await warmUp(made, usualPace);
      runners.push({ contender: made, calls, difference: largestDifference(await made.output(), expected) });
    } catch (error) {
      failures.set(made.name, firstLine(error));
    }
  }
  const rowOf = (name: string, samples: readonly (readonly number[])[]): Row => {
    const at = runners.findIndex(({ contender }) => contender.name === name);
    const { contender, difference } = runners[at] ?? {};
    return {
      name,
      note: contender?.note ?? '',
      samples: samples[at] ?? [],
      difference: difference ?? 0,
      failure: failures.get(name) ?? '',
    };
  };
  let round = 0;
  for await (const samples of inTurns(runners, usualPace.rounds)) {
    round += 1;
    const rows = all.map(({ name }) => rowOf(name, samples));
    scope.postMessage({ kind: 'rows', engine, rows, round, rounds: usualPace.rounds });
  }
  scope.postMessage({ kind: 'done' });
}

scope.onmessage = ({ data }) => {
  measure(data).catch((error: unknown) => scope.postMessage({ kind: 'failed', message: firstLine(error) }));
};
