// The difference between two states in the words of the page, for example "Undone: temperature".

import { fields, type FieldName, type PageState } from './page_state.js';

/** Titles of the fields. Fields that change together share one title. */
const titles: { readonly [name in FieldName]: string } = {
  ...{
    text: 'sentence',
    source: 'heads',
    novelsLayer: 'layer',
    heads: 'heads',
    causal: 'causal',
    query: 'chosen word',
    key: 'chosen word',
    head: 'head in view',
  },
  liveView: 'colors or numbers',
  ...{ step: 'step', part: 'matrix', stepView: 'colors or numbers' },
  ...{ window: 'window', temperature: 'temperature', divisor: 'divisor', muted: 'muted heads', withoutOutput: 'W_O', edits: 'set weights' },
  ...{
    model: 'model',
    ownLayer: 'head of the model',
    ownHead: 'head of the model',
    ownQuery: 'chosen word',
    ownText: 'text',
    ownSentences: 'sentences',
  },
  ...{ ownWeights: 'type of weights', ownDevice: 'device', ownView: 'colors or numbers', ownSort: 'order of the heads' },
  ...{ labTexts: 'sentences', labWords: 'words', labChange: 'change of the model', labFactor: 'change of the model' },
  ...{ train: 'task', seed: 'seed', trainHeads: 'number of heads', layers: 'number of layers', trainLayer: 'layer in view', rate: 'learning rate' },
  ...{
    chart: 'chart',
    trainView: 'colors or numbers',
    trainQuery: 'chosen pair',
    trainKey: 'chosen pair',
    pattern: 'pattern',
    speed: 'size',
    language: 'language',
  },
};

/** The titles of the changed fields: "sentence and heads", "sentence, heads and causal"; empty if nothing differs. */
export function changedIn(now: PageState, before: PageState): string {
  const names = Object.keys(fields) as FieldName[];
  const changed = names.filter((name) => JSON.stringify(now[name]) !== JSON.stringify(before[name]));
  const said = [...new Set(changed.map((name) => titles[name]))];
  return said.length < 2 ? said.join('') : `${said.slice(0, -1).join(', ')} and ${said.at(-1)}`;
}
