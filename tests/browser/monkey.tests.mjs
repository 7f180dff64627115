// Random actions from a seed, as a visitor who presses everything: no error, and a display that goes on.

import assert from 'node:assert/strict';
import { openPage, settled, until } from './harness.mjs';

/** Presses `count` random controls of the page. Returns the last actions, to say what happened before an error. */
const actions = (page, seed, count) =>
  page.evaluate(
    async (from, total) => {
      let state = from;
      const random = (most) => {
        state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
        return Math.floor((state / 2 ** 32) * most);
      };
      const texts = ['', 'a', 'the cat and the cat', 'U.S.A. 1,000 ✦ 猫がすわる', 'one '.repeat(64), '<b>&amp;</b> \u202eabc', 'e\u0301 👩‍🚀 مرحبا'];
      // Not what leaves the page, saves files, or measures for minutes.
      const controls =
        'main button, header button, main select, header select, summary, main input:not([type=file]), main a[href^="#"], main canvas, #sentence';
      const left = '.save, #speed button, #use-it button';
      const log = [];
      for (let i = 0; i < total; i += 1) {
        const all = [...document.querySelectorAll(controls)].filter((each) => !each.matches(left) && !each.disabled && each.checkVisibility());
        const target = all[random(all.length)];
        log.push(`${target.tagName} ${target.id || target.className}`.slice(0, 60));
        if (target.matches('textarea')) {
          target.value = texts[random(texts.length)];
          target.dispatchEvent(new Event('input', { bubbles: true }));
        } else if (target.matches('input[type=range]')) {
          target.value = String(Number(target.min) + (random(101) / 100) * (Number(target.max) - Number(target.min)));
          target.dispatchEvent(new Event('input', { bubbles: true }));
        } else if (target.matches('input:not([type=checkbox])')) {
          const value = ['', '-1', '0.5', '12', 'x', '1e9'][random(6)];
          // A number field holds '' after the letter x. Chromium logs a warning if a script sets the letter.
          target.value = target.type === 'number' && value === 'x' ? '' : value;
          for (const name of ['input', 'change']) target.dispatchEvent(new Event(name, { bubbles: true }));
        } else if (target.matches('select')) {
          // The story stands on a page of its own.
          target.selectedIndex = random([...target.options].filter(({ value }) => !value.startsWith('?')).length);
          target.dispatchEvent(new Event('change', { bubbles: true }));
        } else if (target.matches('canvas')) {
          const { left: x, top: y, width, height } = target.getBoundingClientRect();
          const at = { bubbles: true, clientX: x + (random(100) / 100) * width, clientY: y + (random(100) / 100) * height };
          target.dispatchEvent(new PointerEvent('pointermove', at));
          target.dispatchEvent(new MouseEvent('click', at));
        } else target.click();
        if (random(8) === 0) scrollTo(0, random(document.documentElement.scrollHeight));
        if (random(25) === 0) history.go(random(2) ? -1 : 1);
        await new Promise((done) => setTimeout(done, random(4) * 25));
      }
      return log;
    },
    seed,
    count,
  );

/** Chromium's warning about many changes of the address within seconds. */
const expected = /Throttling navigation/;

/** Milliseconds after which no further round begins: on a busy machine a round takes ten times as long. */
const enough = 180_000;

/** `rounds` rounds of `each` actions, or fewer if they take long. */
async function monkey({ browser, url }, seed, rounds, each) {
  const { page, complaints, close } = await openPage(browser, url, { fresh: true });
  const end = performance.now() + enough;
  let round = 0;
  for (; round < rounds && performance.now() < end; round += 1) {
    const log = await actions(page, seed + round, each);
    assert.deepEqual(
      complaints.filter((text) => !expected.test(text)),
      [],
      `seed ${seed + round}, after ${log.slice(-12).join('; ')}`,
    );
  }
  // The display goes on: a new sentence has its numbers, and a training that starts over makes a step.
  await page.evaluate(() => void (location.hash = '#text=the+end+of+it&at=train'));
  const { length } = (await settled(page), await page.evaluate(() => window.multiheadPage.snapshot().tokens));
  assert.equal(length, 4);
  await until(page, () => {
    const { status } = window.multiheadPage.training();
    if (status === 'running') document.querySelector('#train-go').click();
    return status === 'paused';
  });
  await page.$eval('#train-anew', (button) => button.click());
  await until(page, () => window.multiheadPage.training().status === 'paused' && window.multiheadPage.training().step === 0);
  await page.$eval('#train-step', (button) => button.click());
  await until(page, () => /^Step 1\b/.test(document.querySelector('.train-place').textContent));
  await close({ expected });
  return `${round * each} actions`;
}

export const tests = [
  { name: 'random actions, a few: no error, and the display goes on', run: (on) => monkey(on, 7, 1, 100) },
  // Each browser has seeds of its own, because a round takes 4 to 5 s.
  {
    name: 'random actions, many: no error, and the display goes on',
    thorough: true,
    run: (on) => monkey(on, 42, 15, 50),
  },
];
