// Generations of an engine of either kind.

import { CoreBeams } from './beams.js';
import type { Awaitable, Generation, GenerationSettings, ModelEngine } from './engine.js';
import { CoreGeneration, stepTogether } from './generation.js';
import type { CoreModel } from './model.js';

export function ofCore({ core, handle, info, generations }: CoreModel, settings: GenerationSettings): CoreGeneration | CoreBeams {
  const Made = settings.beams === undefined ? CoreGeneration : CoreBeams;
  return new Made(core, handle, info, settings, generations);
}

export const generationOf = (engine: ModelEngine, settings: GenerationSettings): Generation =>
  engine.generation?.(settings) ?? ofCore(engine as CoreModel, settings);

export const together = (engine: ModelEngine, generations: readonly Generation[]): Awaitable<void> =>
  engine.together === undefined ? stepTogether((engine as CoreModel).core, generations) : engine.together(generations);
