// Runs axe-core in a page.

import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';

const source = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** The serious and critical findings within the given selectors, each with its rule and some elements. */
export async function seriousFindings(page, ...selectors) {
  if (!(await page.evaluate(() => 'axe' in window))) await page.evaluate(source);
  return page.evaluate(
    async (include) => {
      // A number that flies to its cell fades at the end, so that its contrast falls.
      const ends = document.getAnimations().filter(({ effect }) => Number.isFinite(effect?.getComputedTiming().endTime));
      await Promise.allSettled(ends.map(({ finished }) => finished));
      const { violations } = await window.axe.run({ include }, { resultTypes: ['violations'] });
      const serious = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
      return serious.map(
        ({ id, nodes }) =>
          `${id}: ${nodes
            .slice(0, 3)
            .map(({ html }) => html.slice(0, 200))
            .join(' ')}`,
      );
    },
    selectors.map((selector) => [selector]),
  );
}
