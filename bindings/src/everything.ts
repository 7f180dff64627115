// Contents that every entry point except multihead/core loads.

import createGlue from './glue.js';
import type { Contents } from './loader.js';
import { createMultihead } from './multihead.js';
import { readParameter } from './state_dict.js';
import type { Multihead } from './types.js';

export const everything: Contents<Multihead> = { createGlue, createApi: createMultihead, readParameter };
