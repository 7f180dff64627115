// The formula of every step in MathML, with indices from 1 as the page counts.

/** Makes an element each time it is called: a formula has the same part several times. */
type Part = () => MathMLElement;

function element(tag: string, attributes: Readonly<Record<string, string>>, children: readonly (Part | string)[]): MathMLElement {
  const made = document.createElementNS('http://www.w3.org/1998/Math/MathML', tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.map((child) => (typeof child === 'string' ? child : child())));
  return made;
}

const part =
  (tag: string, attributes: Readonly<Record<string, string>>, ...children: (Part | string)[]): Part =>
  () =>
    element(tag, attributes, children);

const i = (name: string) => part('mi', {}, name);
const op = (sign: string) => part('mo', {}, sign);
const n = (value: string) => part('mn', {}, value);
const row = (...parts: Part[]) => part('mrow', {}, ...parts);
const sub = (base: Part, index: Part) => part('msub', {}, base, index);
const sup = (base: Part, power: Part) => part('msup', {}, base, power);
const subsup = (base: Part, index: Part, power: Part) => part('msubsup', {}, base, index, power);
const frac = (above: Part, below: Part) => part('mfrac', {}, above, below);
const root = (inner: Part) => part('msqrt', {}, inner);
/** Browsers trim ordinary spaces at the ends of mtext. */
const text = (words: string) => part('mtext', {}, words.replaceAll(' ', '\u00a0'));
const sum = (under: Part, over: Part) => part('munderover', {}, op('∑'), under, over);
const transposed = (base: Part, index: Part) => subsup(base, index, i('⊤'));
const line = (...cells: Part[]) => part('mtr', {}, ...cells.map((cell) => part('mtd', {}, cell)));

const h = i('h');
const ij = row(i('i'), i('j'));
const width = sub(i('d'), text('head'));

const sources = {
  x: row(sub(i('x'), i('t')), op('='), text('position'), op('∥'), text('word'), op('∥'), text('letter'), op('∥'), text('kind')),
  given: row(sub(i('x'), i('t')), op('='), text('norm'), op('('), sub(i('h'), i('t')), op(')')),
  q: row(i('q'), op('='), i('x'), transposed(i('W'), i('Q'))),
  k: row(i('k'), op('='), i('x'), transposed(i('W'), i('K'))),
  v: row(i('v'), op('='), i('x'), transposed(i('W'), i('V'))),
  // Two lines: in one line, the formula is wider than its box at the right of the map.
  split: part(
    'mtable',
    { columnalign: 'left' },
    line(row(text('Head '), h, text(' has the columns'))),
    line(row(width, op('('), h, op('−'), n('1'), op(')'), op('+'), n('1'), text(' to '), width, h)),
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
    row(
      op('{'),
      part('mtable', { columnalign: 'left left' }, line(sub(i('z'), ij), text('where j may be seen')), line(row(op('−'), i('∞')), text('elsewhere'))),
    ),
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

/** Makes a formula in the size of a displayed one, but at the left: browsers center one with display="block". */
export const formula = (name: FormulaName): Element => element('math', { displaystyle: 'true' }, [sources[name]]);
