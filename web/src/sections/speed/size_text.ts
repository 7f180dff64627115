// The size of a measurement in words.

import { sizes, type SizeId } from '../../speed/messages.js';

export const describe = (id: SizeId): string => {
  const { heads, queries, width } = sizes[id];
  return `${queries.toLocaleString('en')} tokens, ${heads} heads of width ${width}`;
};
