// The two sentences of the laboratory, and the change of the model while it writes.

import type { PageState } from '../../state/page_state.js';
import type { Change, Two } from '../../model/messages.js';

export const samples: Readonly<Record<'english' | 'text' | 'ids', Two<string>>> = {
  english: ['She was very glad to see Mr.', 'She was very glad to see him.'],
  text: ['When Mary and John went to the store, John gave a drink to', 'When Mary and John went to the store, Mary gave a drink to'],
  ids: ['1 2 3 4', '1 2 3 5'],
};

/** The sentences of the visitor, one a line. */
export const linesOf = (text: string): string[] => text.split('\n').filter((line) => line.trim() !== '');

/** The first two sentences of the visitor, or samples. */
export function textsOf({ labTexts }: PageState, usual: Two<string>): Two<string> {
  const [first, second] = linesOf(labTexts);
  return first === undefined ? usual : [first, second ?? ''];
}

export const wordsOf = ({ labWords }: PageState): [string, string] => {
  const [first = '', second = ''] = labWords.split('\n');
  return [first, second];
};

/** The change that the visitor has chosen, of the open head or before its layer; undefined for none. */
export function changeOf(state: PageState, usual: Two<string>, place: { readonly layer: number; readonly head: number }): Change | undefined {
  const { labChange: kind, labFactor: factor } = state;
  if (kind === 'scale') return { kind, ...place, factor };
  if (kind === 'swap') return { kind, ...place, text: textsOf(state, usual)[1] };
  return kind === 'steer' ? { kind, layer: place.layer, factor, texts: textsOf(state, usual) } : undefined;
}
