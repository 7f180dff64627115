// Contents that multihead/core loads.

import createGlue from './core_glue.js';
import { createCore } from './core_operations.js';
import type { MultiheadCore } from './core_types.js';
import type { Contents } from './loader.js';

export const coreContents: Contents<MultiheadCore> = { part: 'core', createGlue, createApi: createCore };
