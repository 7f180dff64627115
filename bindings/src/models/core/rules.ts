// Rules of a generation as one list of numbers: rules_of() of lists.h.

import type { TokenRules } from '../../types/models.js';

const counted = (ids: readonly number[]): number[] => [ids.length, ...ids];

/** `ends` and `source` are of the call: ids that may not come too early, and what encoderNoRepeatNgramSize is about. */
export const numbersOf = (rules: TokenRules, ends: Iterable<number>, source: Iterable<number>): number[] => [
  ...[rules.forcedBos ?? -1, rules.forcedEos ?? -1, rules.noRepeatNgramSize, rules.encoderNoRepeatNgramSize],
  ...[rules.minLength, rules.minNewTokens, ...counted(rules.suppress), ...counted(rules.beginSuppress)],
  ...[rules.badWords.length, ...rules.badWords.flatMap(counted), ...counted([...ends]), ...counted([...source])],
];

export function rulesOf(numbers: readonly number[]): TokenRules {
  let at = 0;
  const next = (): number => numbers[at++] as number;
  const forced = (): number | undefined => {
    const id = next();
    return id < 0 ? undefined : id;
  };
  const ids = (): number[] => {
    const count = next();
    return numbers.slice(at, (at += count));
  };
  return {
    ...{ forcedBos: forced(), forcedEos: forced(), noRepeatNgramSize: next(), encoderNoRepeatNgramSize: next() },
    ...{ minLength: next(), minNewTokens: next(), suppress: ids(), beginSuppress: ids(), badWords: Array.from({ length: next() }, ids) },
  };
}
