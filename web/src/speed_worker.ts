// The worker of the speed section: prepares the implementations, measures them in turns, and reports after each round.

import { firstLine, makeContenders } from './speed/contenders.js';
import { interleaved, largestDifference, usualPace, warmUp, type Contender } from './speed/measure.js';
import { sizes, type Engine, type Row, type SpeedCalls, type SpeedEvent, type SpeedRequest } from './speed/messages.js';
import { serve } from './workers/serve.js';

interface Runner {
  readonly contender: Contender;
  readonly calls: number;
  readonly difference: number;
}

async function measure({ size, peers }: SpeedRequest): Promise<void> {
  const say = (what: string) => report({ kind: 'step', what });
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
  for await (const samples of interleaved(runners, usualPace.rounds)) {
    round += 1;
    const rows = all.map(({ name }) => rowOf(name, samples));
    report({ kind: 'rows', engine, rows, round, rounds: usualPace.rounds });
  }
}

const report = serve<SpeedCalls, SpeedEvent>({ measure });
