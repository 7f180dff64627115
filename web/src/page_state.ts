// The visitor's choices, and their form in the address: #text=…&heads=previous.first&causal=1&step=…&head=…

import { patternIds, type PatternId } from './patterns.js';
import { maxCharacters, presets } from './tokens.js';

export const stepIds = [
  'x',
  'project',
  'split',
  'scores',
  'scale',
  'mask',
  'softmax',
  'values',
  'merge',
  'output',
] as const;
export type StepId = (typeof stepIds)[number];

export interface PageState {
  readonly text: string;
  /** The patterns of head 1, head 2 and so on. */
  readonly heads: readonly PatternId[];
  readonly causal: boolean;
  readonly step: StepId;
  /** Index of the head that "Step through" shows, from 0. */
  readonly head: number;
}

export const defaults: PageState = {
  text: presets[1]!,
  heads: ['previous', 'first', 'same', 'nearby'],
  causal: false,
  step: 'softmax',
  head: 0,
};

/** The part of the address after '#', empty for the defaults. */
export function toHash(state: PageState): string {
  const fields = new URLSearchParams();
  if (state.text !== defaults.text) fields.set('text', state.text);
  if (state.heads.join() !== defaults.heads.join()) fields.set('heads', state.heads.join('.'));
  if (state.causal !== defaults.causal) fields.set('causal', state.causal ? '1' : '0');
  if (state.step !== defaults.step) fields.set('step', state.step);
  if (state.head !== defaults.head) fields.set('head', String(state.head + 1));
  return fields.toString();
}

type Reader = (value: string, soFar: PageState) => Partial<PageState> | undefined;

const readers: Readonly<Record<string, Reader>> = {
  text: (value) => (value.length <= maxCharacters ? { text: value } : undefined),
  heads: (value) => {
    const heads = value.split('.') as PatternId[];
    const known = heads.every((head) => patternIds.includes(head));
    return known && new Set(heads).size === heads.length ? { heads } : undefined;
  },
  causal: (value) => (value === '0' || value === '1' ? { causal: value === '1' } : undefined),
  step: (value) => (stepIds.includes(value as StepId) ? { step: value as StepId } : undefined),
  head: (value, { heads }) =>
    /^[1-9]\d?$/.test(value) && Number(value) <= heads.length ? { head: Number(value) - 1 } : undefined,
};

export interface ReadState {
  state: PageState;
  /** Names of the fields that are invalid or unknown; they have their defaults. */
  broken: string[];
}

export function fromHash(hash: string): ReadState {
  const fields = new URLSearchParams(hash.replace(/^#/, ''));
  let state = defaults;
  const broken: string[] = [];
  for (const [name, read] of Object.entries(readers)) {
    const value = fields.get(name);
    if (value === null) continue;
    const part = read(value, state);
    if (part) state = { ...state, ...part };
    else broken.push(name);
  }
  for (const name of new Set(fields.keys())) {
    if (!Object.hasOwn(readers, name)) broken.push(name.slice(0, 40));
  }
  return { state, broken };
}
