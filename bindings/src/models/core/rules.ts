// Rules of a generation as one list of numbers: rules_of() of lists.h.

import type { TokenRules } from '../../types/models.js';

const counted = (ids: readonly number[]): number[] => [ids.length, ...ids];

export const numbersOf = ({ forcedBos, forcedEos, suppress, beginSuppress, badWords }: TokenRules): number[] => [
  ...[forcedBos ?? -1, forcedEos ?? -1],
  ...[...counted(suppress), ...counted(beginSuppress)],
  ...[badWords.length, ...badWords.flatMap(counted)],
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
  const rules = { forcedBos: forced(), forcedEos: forced(), suppress: ids(), beginSuppress: ids() };
  const badWords = Array.from({ length: next() }, ids);
  return { ...rules, badWords };
}
