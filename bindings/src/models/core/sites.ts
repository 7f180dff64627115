// Values inside a model, and their shapes.

import { sites } from '../../generated/tables.js';
import type { ModelInfo, Site } from '../../types/models.js';
import type { Place } from './engine.js';

/** In the order of the core: resid_pre of residPre. */
export const siteNames = Object.keys(sites).map((name) => name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)) as Site[];

/** Tokens of a pass, and of the encoder before it. */
export interface TokenCounts {
  readonly tokens: number;
  readonly source?: number | undefined;
}

/** The site's axes without that of sequences, and which of them are those of tokens and heads. */
export function axesOf(
  site: number,
  info: ModelInfo,
  { tokens, source = 0 }: TokenCounts,
): { shape: number[]; tokenAxis: number; headAxis?: number } {
  const { embedDim, headDim, mlpDim, numHeads, numKvHeads } = info;
  const name = siteNames[site] as Site;
  const keys = name.startsWith('cross_') ? source : tokens;
  switch (name.replace('cross_', '')) {
    case 'q':
    case 'z':
      return { shape: [tokens, numHeads, headDim], tokenAxis: 0, headAxis: 1 };
    case 'k':
    case 'v':
      return { shape: [keys, numKvHeads, headDim], tokenAxis: 0, headAxis: 1 };
    case 'scores':
    case 'pattern':
      return { shape: [numHeads, tokens, keys], tokenAxis: 1, headAxis: 0 };
    default:
      return { shape: [tokens, name === 'mlp_hidden' ? mlpDim : embedDim], tokenAxis: 0 };
  }
}

/** The shape of a value with its heads. */
export function shapeOf({ site, heads }: Place, info: ModelInfo, counts: TokenCounts): number[] {
  const { shape, headAxis } = axesOf(site, info, counts);
  if (heads !== undefined && headAxis !== undefined) shape[headAxis] = heads.length;
  return shape;
}
