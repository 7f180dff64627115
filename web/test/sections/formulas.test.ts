import { afterEach, describe, expect, it, vi } from 'vitest';
import { formula } from '../../src/sections/steps/formulas.js';

/** A document that makes elements, and cannot read markup. */
function elementsOnly(): void {
  const makes = (_: string, tag: string) => {
    const attributes: string[] = [];
    const children: unknown[] = [];
    return {
      setAttribute: (name: string, value: string) => attributes.push(` ${name}="${value}"`),
      append: (...more: unknown[]) => children.push(...more),
      toString: () => `<${tag}${attributes.join('')}>${children.map(String).join('')}</${tag}>`,
    };
  };
  vi.stubGlobal('document', { createElementNS: makes });
}

describe('formulas', () => {
  afterEach(() => vi.unstubAllGlobals());

  it('are made of elements, without markup, which the security policy refuses', () => {
    elementsOnly();
    const scale =
      '<math displaystyle="true"><mrow><msub><mi>z</mi><mrow><mi>i</mi><mi>j</mi></mrow></msub><mo>=</mo>' +
      '<mfrac><msub><mi>s</mi><mrow><mi>i</mi><mi>j</mi></mrow></msub><msqrt><msub><mi>d</mi><mtext>head</mtext></msub></msqrt></mfrac>' +
      '</mrow></math>';
    expect(String(formula('scale'))).toBe(scale);
    expect(String(formula('scale')), 'again').toBe(scale);
    expect(String(formula('split'))).toMatch(/<mrow><mtext>Head\u00a0<\/mtext><mi>h<\/mi><mtext>\u00a0has\u00a0the\u00a0columns<\/mtext><\/mrow>/);
    expect(String(formula('mask'))).toMatch(/<mtable columnalign="left left"><mtr><mtd>.*<mtext>elsewhere<\/mtext><\/mtd><\/mtr><\/mtable>/);
  });
});
