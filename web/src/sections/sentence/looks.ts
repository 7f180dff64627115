// Finds where each head looks from a word, and writes it as numbers and as a sentence.

import { isUnbent } from '../../attention/bend.js';
import { largestIndex, rowOf } from '../../attention/matrix.js';
import type { ForwardResult } from '../../attention/messages.js';
import { presetOf } from '../../attention/presets.js';
import { tokenize, tokenNames } from '../../attention/tokens.js';
import { listed } from '../../base/format.js';

export interface Look {
  readonly key: number;
  readonly weight: number;
  readonly muted: boolean;
}

export function looksFrom({ trace, heads, bend }: ForwardResult, query: number): Look[] {
  return heads.map((_, head) => {
    const row = rowOf(trace.weights, head, query);
    const key = largestIndex(row);
    return { key, weight: row[key]!, muted: bend.muted.includes(head) };
  });
}

/** With less, the other keys together have most of the weight. */
export const mostWeight = 0.5;

/**
 * Says where each head looks from a word: "From “saw”: heads 1 and 2 look at “I”, head 3 at itself." An example's own line is
 * used where it is true: with the example's heads and mask, for its word, and if nothing is bent.
 *
 * @param text the text field's, which may be newer than the result
 */
export function captionOf(result: ForwardResult, query: number, text: string): string {
  const { tokens, heads, causal, bend, given } = result;
  const preset = presetOf(text);
  const isOwn = preset?.query === query && preset.causal === causal && String(preset.heads) === String(heads) && !given && isUnbent(bend);
  if (isOwn && String(tokenize(text).tokens) === String(tokens)) return preset.line;
  const names = tokenNames(tokens);
  const places = new Map<string, number[]>();
  const muted: number[] = [];
  looksFrom(result, query).forEach((look, head) => {
    const place = look.weight < mostWeight ? 'several words' : look.key === query ? 'itself' : `“${names[look.key]!}”`;
    if (look.muted) muted.push(head + 1);
    else places.set(place, [...(places.get(place) ?? []), head + 1]);
  });
  const parts = [...places].map(([place, those], i) => `${headsInWords(those)} ${i > 0 ? '' : those.length > 1 ? 'look ' : 'looks '}at ${place}`);
  if (muted.length > 0) parts.push(`${headsInWords(muted)} ${muted.length > 1 ? 'are' : 'is'} muted`);
  return `From “${names[query]}”: ${parts.join(', ')}.`;
}

/** Explains the marks of struck and dotted words, if there are such words now. */
export function marksOf({ tokens, trace, given }: ForwardResult, query: number): string {
  const scores = trace.maskedScores.data.subarray(query * tokens.length, (query + 1) * tokens.length);
  const unknown = [...new Set(given?.unknown?.map((at) => `“${tokens[at]}”`))];
  const dotted =
    unknown.length > 0 && ` This model has not learned ${listed(unknown)} (dotted): of such words it reads only the form, such as the ending.`;
  return (scores.includes(-Infinity) ? ' Struck words are hidden from it.' : '') + (dotted || '');
}

/** "head 1", "heads 1, 2 and 4". */
const headsInWords = (heads: readonly number[]): string => `head${heads.length > 1 ? 's' : ''} ${heads.join(', ').replace(/, (\d+)$/, ' and $1')}`;
