// The formula of every step in MathML, with indices from 1 as the page counts. The markup contains only constants.

const i = (name: string) => `<mi>${name}</mi>`;
const op = (sign: string) => `<mo>${sign}</mo>`;
const n = (value: string) => `<mn>${value}</mn>`;
const row = (...parts: string[]) => `<mrow>${parts.join('')}</mrow>`;
const sub = (base: string, index: string) => `<msub>${base}${index}</msub>`;
const sup = (base: string, power: string) => `<msup>${base}${power}</msup>`;
const subsup = (base: string, index: string, power: string) => `<msubsup>${base}${index}${power}</msubsup>`;
const frac = (above: string, below: string) => `<mfrac>${above}${below}</mfrac>`;
const root = (inner: string) => `<msqrt>${inner}</msqrt>`;
const text = (words: string) => `<mtext>${words}</mtext>`;
const space = '<mspace width="1em"></mspace>';
const sum = (under: string, over: string) =>
  over ? `<munderover>${op('∑')}${under}${over}</munderover>` : `<munder>${op('∑')}${under}</munder>`;
const transposed = (base: string, index: string) => subsup(base, index, i('⊤'));

const h = i('h');
const ij = row(i('i'), i('j'));
const width = sub(i('d'), text('head'));

const sources = {
  x: row(
    sub(i('x'), i('t')),
    op('='),
    text('position'),
    op('∥'),
    text('word'),
    op('∥'),
    text('letter'),
    op('∥'),
    text('kind'),
  ),
  q: row(i('q'), op('='), i('x'), transposed(i('W'), i('Q'))),
  k: row(i('k'), op('='), i('x'), transposed(i('W'), i('K'))),
  v: row(i('v'), op('='), i('x'), transposed(i('W'), i('V'))),
  split: row(
    text('head'),
    h,
    op(':'),
    space,
    text('columns'),
    op('('),
    i('h'),
    op('−'),
    n('1'),
    op(')'),
    width,
    op('+'),
    n('1'),
    text(' to '),
    i('h'),
    width,
  ),
  scores: row(
    sub(i('s'), ij),
    op('='),
    sub(i('q'), i('i')),
    op('·'),
    sub(i('k'), i('j')),
    op('='),
    sum(row(i('c'), op('='), n('1')), width),
    sub(i('q'), row(i('i'), i('c'))),
    sub(i('k'), row(i('j'), i('c'))),
  ),
  scale: row(sub(i('z'), ij), op('='), frac(sub(i('s'), ij), root(width))),
  scaleModel: row(sub(i('z'), ij), op('='), frac(sub(i('s'), ij), root(sub(i('d'), text('model'))))),
  scaleNone: row(sub(i('z'), ij), op('='), sub(i('s'), ij)),
  unmasked: row(sub(i('m'), ij), op('='), sub(i('z'), ij)),
  mask: row(
    sub(i('m'), ij),
    op('='),
    `<mrow>${op('{')}<mtable columnalign="left left"><mtr><mtd>${sub(i('z'), ij)}</mtd><mtd>${text('where j may be seen')}</mtd></mtr><mtr><mtd>${row(op('−'), i('∞'))}</mtd><mtd>${text('elsewhere')}</mtd></mtr></mtable></mrow>`,
  ),
  softmax: row(
    sub(i('w'), ij),
    op('='),
    frac(sup(i('e'), sub(i('m'), ij)), row(sub(op('∑'), i('l')), sup(i('e'), sub(i('m'), row(i('i'), i('l')))))),
  ),
  values: row(sub(i('o'), i('i')), op('='), sum(row(i('j'), op('='), n('1')), i('N')), sub(i('w'), ij), sub(i('v'), i('j'))),
  merge: row(
    i('o'),
    op('='),
    sub(i('o'), text('head 1')),
    op('∥'),
    sub(i('o'), text('head 2')),
    op('∥'),
    op('…'),
    op('∥'),
    sub(i('o'), row(text('head '), i('H'))),
  ),
  output: row(i('y'), op('='), i('o'), transposed(i('W'), i('O'))),
} as const;

export type FormulaName = keyof typeof sources;

export function formula(name: FormulaName): Element {
  const template = document.createElement('template');
  // As large as a displayed formula, but at the left: browsers centre one with display="block" in any case.
  template.innerHTML = `<math displaystyle="true">${sources[name]}</math>`;
  return template.content.firstElementChild!;
}
