// The story at ?scene=NAME: each scene's numbers and controls, its address, a frame in another page, the handout, the lessons.

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { lost } from './accessibility.tests.mjs';
import { seriousFindings } from './axe.mjs';
import { eventually, openPage, setViewport, until } from './harness.mjs';

const scenes = ['compromise', 'score', 'temperature', 'heads', 'split', 'mask', 'jobs', 'cache'];

/** Opens a scene and waits for its line of numbers. */
async function openScene(browser, url, query, options = {}) {
  const opened = await openPage(browser, `${url}?lang=en&scene=${query}`, { ready: false, fresh: true, ...options });
  await shown(opened.page);
  return opened;
}
const shown = (page) =>
  until(page, () => {
    const lines = [...document.querySelectorAll('.story-live')];
    return lines.length > 0 && lines.every((line) => line.textContent !== '');
  });
const address = (page) => page.evaluate(() => location.href);
const live = (page) => page.$eval('.story-live', (line) => line.textContent);
const after = (page) => page.$eval('.story-after', (line) => line.textContent);

/** Moves a slider as its arrow keys do, and waits for other numbers. */
async function move(page, name, value) {
  const before = await live(page);
  await page.$eval(
    `#story-${name}`,
    (input, to) => {
      input.valueAsNumber = to;
      input.dispatchEvent(new Event('input', { bubbles: true }));
    },
    value,
  );
  await eventually(async () => (await live(page)) !== before, `the line of ${name} changes`);
}

const press = (page, selector) => page.$eval(selector, (button) => button.click());

export const tests = [
  {
    name: 'the numbers of the scenes about one head: they are right, and the address keeps what was chosen',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openScene(browser, url, 'compromise');
      // e^5 = 148.41 for both words, and 1 for each of the other six.
      assert.equal(await live(page), 'Head 1 gives 49\u00a0% to “loan”, 49\u00a0% to “river” and 2\u00a0% to the other words.');
      await move(page, 'lean', 100);
      assert.equal(await live(page), 'Head 1 gives 95\u00a0% to “loan”, 1\u00a0% to “river” and 4\u00a0% to the other words.');
      await eventually(async () => /#lean=100$/.test(await address(page)), 'the address has the number');
      await press(page, '.story-choice button:last-child');
      await until(page, () => /Head 2/.test(document.querySelector('.story-live').textContent));
      assert.equal(await live(page), 'Head 1 gives 95\u00a0% to “loan”. Head 2 gives 95\u00a0% to “river”.');
      assert.equal((await page.$$('.arc')).length, 2);
      await eventually(async () => /heads=2/.test(await address(page)), 'the address has the number of heads');

      await page.goto(`${url}?lang=en&scene=score#angle=90`);
      await shown(page);
      assert.equal(await live(page), '“barked” scores highest: 0.00 · 1.20 + 2.20 · 2.10 = 4.62.');
      await page.goto(`${url}?lang=en&scene=temperature#divisor=-8`);
      await shown(page);
      assert.equal(await live(page), 'Divided by 0.25, the largest share is 100\u00a0%, and the head chooses as if among 1.0 words.');
      await move(page, 'divisor', 24);
      assert.match(await live(page), /^Divided by 64, the largest share is 14\u00a0%.* 8\.0 words\.$/);
      await close();
    },
  },
  {
    name: 'the scenes about heads, the split and the cache say what is so',
    async run({ browser, url }) {
      const { page, close } = await openScene(browser, url, 'heads');
      assert.match(await page.$eval('.story-looks', (list) => list.textContent), /the₆ 99\u00a0%.*I 100\u00a0%.*dog₄ 100\u00a0%/);
      await press(page, '.story-word:nth-child(2)');
      await until(page, () => /saw/.test(document.querySelector('.story-live').textContent));
      await press(page, '.segments button:first-child');
      await until(page, () => document.querySelectorAll('.story-looks li').length === 1);
      await eventually(async () => /word=1/.test(await address(page)), 'the address has the word');
      await page.goto(`${url}?lang=en&scene=split`);
      await shown(page);
      assert.equal(await live(page), 'Head 2 begins at place 5 in memory. From word to word it steps 8 places.');
      await press(page, '#story-wrong');
      assert.equal(await live(page), 'First wrong cell: head 1, row 2. It should show column 1 of “black” and shows column 5 of “the”.');
      await page.goto(`${url}?lang=en&scene=cache#written=48`);
      await shown(page);
      assert.match(
        await live(page),
        /^In a model of the size of GPT-2, attention takes 29\.2 million multiply-adds for word 48, and 1\.38 billion without the cache\.$/,
      );
      assert.match(await after(page), /the largest difference is (0|0\.000000\d\d)\. The cache holds 3,539\u00a0kB, in 32-bit numbers\./);
      await close();
    },
  },
  {
    name: 'the scenes that train: peeking looks perfect and writes badly, and four heads find four jobs',
    async run({ browser, url }) {
      const { page, close } = await openScene(browser, url, 'mask');
      assert.equal(await after(page), '');
      await press(page, '.story-controls .primary');
      await until(page, () => /^Step 100:/.test(document.querySelector('.story-live').textContent));
      const [, peeks, honest] = /peeks is right (\d+)\u00a0% of the time, the other (\d+)\u00a0%/.exec(await live(page));
      const [, written, honestWritten] = /: (\d+)\u00a0% against (\d+)\u00a0%/.exec(await after(page));
      assert.ok(peeks >= 98 && written <= 35 && honest >= 75 && honestWritten >= 75, `${peeks} ${written} ${honest} ${honestWritten}`);
      await page.goto(`${url}?lang=en&scene=jobs`);
      await shown(page);
      await press(page, '.story-controls .primary');
      await until(page, () => /^4 of 4/.test(document.querySelector('.story-after').textContent));
      const titles = await page.$$eval('.story-map-card figcaption span:last-child', (names) => names.map((name) => name.textContent).sort());
      assert.deepEqual(titles, ['the latest star', 'the latest vowel', 'the letter before', 'two back']);
      await close();
    },
  },
  {
    thorough: true,
    name: 'every scene fits, by keyboard and for axe, wide and narrow, in both languages',
    async run({ browser, url }) {
      const { page, close } = await openScene(browser, url, scenes[0]);
      for (const language of ['en', 'de']) {
        for (const scene of scenes) {
          await page.goto(`${url}?lang=${language}&scene=${scene}`);
          await shown(page);
          assert.equal(await page.$eval('html', (html) => html.lang), language);
          for (const width of language === 'en' ? [1280, 360] : [360]) {
            await setViewport(page, { width, height: 740 });
            // Maps are drawn for another width in a later frame.
            await until(page, () =>
              [...document.querySelectorAll('.map-stage')].every(({ offsetWidth, parentElement }) => offsetWidth <= parentElement.clientWidth),
            );
            assert.deepEqual(await lost(page), [], `${scene} ${language} ${width}`);
            assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), width, scene);
            assert.deepEqual(await seriousFindings(page, 'body'), [], `${scene} ${language} ${width}`);
          }
          // A visitor may have set letters of twice the size.
          await page.evaluate(() => (document.documentElement.style.fontSize = '200%'));
          assert.deepEqual(await lost(page), [], `${scene} ${language}, large letters`);
          assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 360, `${scene} ${language}, large letters`);
        }
      }
      // Arrow keys turn the pages, and the tour leads from the first scene to the last.
      await page.goto(`${url}?lang=en&scene=${scenes[0]}`);
      await shown(page);
      for (const scene of scenes.slice(1)) {
        const key = scene === 'heads' ? undefined : 'ArrowRight';
        await Promise.all([page.waitForNavigation(), key ? page.keyboard.press(key) : press(page, 'a[rel=next]')]);
        await shown(page);
        assert.match(await address(page), new RegExp(`scene=${scene}$`));
      }
      assert.equal(await page.$('a[rel=next]'), null);
      await close();
    },
  },
  {
    name: 'in German, numbers have a comma, and so has what trains; around the scene all is German, or is said to be English',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}?lang=de&scene=jobs`, { ready: false, fresh: true });
      await shown(page);
      await press(page, '.story-controls .primary');
      await until(page, () => /\d,\d\u00a0%/.test(document.querySelector('.story-live').textContent));
      for (const scene of ['jobs', 'score#angle=33', 'temperature#divisor=1', 'cache']) {
        if (scene !== 'jobs') await page.goto(`${url}?lang=de&scene=${scene}`);
        await shown(page);
        assert.doesNotMatch(await page.$eval('#page', (element) => element.innerText), /\d\.\d/, scene);
      }
      assert.equal(await page.$eval('#skip-link', (link) => link.textContent), 'Zur Szene springen');
      assert.match(await page.$eval('.tools .icon-button', (button) => button.ariaLabel), /^(Helle|Dunkle) Farben$/);
      assert.match(await page.$eval('.foot', (foot) => foot.textContent), /^Die Geschichte gibt es auf Deutsch, .* nur auf Englisch\./);
      await close();
    },
  },
  {
    name: 'a scene alone stands in a frame of another page; the page itself does not',
    async run({ browser, url }) {
      const frame = (query) => `<iframe src="${url}${query}" width="900" height="600"></iframe>`;
      const other = createServer((_, response) => {
        response.setHeader('Content-Type', 'text/html');
        response.end(frame('?lang=en&scene=score&embed=1') + frame('?scene=score'));
      });
      await new Promise((done) => other.listen(0, '127.0.0.1', done));
      const { page, close } = await openPage(browser, `http://127.0.0.1:${other.address().port}/`, { ready: false, fresh: true });
      const texts = () =>
        Promise.all(page.frames().map((each) => each.evaluate(() => document.querySelector('.story-live')?.textContent ?? '').catch(() => '')));
      await eventually(async () => (await texts()).some((text) => text.startsWith('“barked” scores highest')), 'the scene is in its frame');
      assert.equal((await texts()).filter((text) => text !== '').length, 1);
      const alone = page.frames().find((each) => each.url().includes('embed=1'));
      assert.deepEqual(
        await alone.evaluate(() => ['.top', '.story-so', '.story-tour'].map((part) => document.querySelector(part)?.checkVisibility() ?? false)),
        [false, false, false],
      );
      await close({ expected: /frame-ancestors|X-Frame-Options/ });
      other.close();
    },
  },
  {
    name: 'the handout has all eight scenes, the lessons lead to scenes, and the programs are there',
    async run({ browser, url }) {
      const { page, close } = await openScene(browser, url, 'all');
      assert.equal((await page.$$('.story-scene')).length, 8);
      assert.equal(new Set(await page.$$eval('.story-scene h2', (titles) => titles.map((title) => title.textContent))).size, 8);
      // The handout shows what is trained, without a press of a button.
      await until(page, () => /^4 of 4/.test([...document.querySelectorAll('.story-after')].map((line) => line.textContent)[6]));
      if (page.pdf) {
        const text = Buffer.from(await page.pdf({ format: 'A4' })).toString('latin1');
        assert.equal(text.match(/\/Type\s*\/Page\b/g)?.length, 4);
      }
      await page.goto(`${url}?lang=de&scene=lessons`);
      await until(page, () => document.querySelectorAll('.story-lessons section').length === 3);
      const links = await page.$$eval('.story-lessons a', (all) => all.map(({ href }) => href));
      assert.equal(links.length, 12);
      for (const link of links) {
        const { searchParams } = new URL(link);
        assert.ok(scenes.includes(searchParams.get('scene')), link);
        assert.equal(searchParams.get('lang'), 'de');
      }
      await page.goto(links[0]);
      await shown(page);
      assert.match(await live(page), /^Kopf 1 gibt 95/);
      await press(page, '.story-code summary');
      await until(page, () => document.querySelectorAll('.story-code pre').length === 2);
      assert.match(await page.$eval('.story-code pre', (text) => text.textContent), /mh\.attention\(q, k, v/);
      await close();
    },
  },
  {
    name: 'a name that is no scene begins the story, and a number that is none is left out',
    async run({ browser, url }) {
      const { page, close } = await openScene(browser, url, '%3Cb%3E#lean=1e9&heads=x');
      assert.equal(await page.$eval('.story-scene h1', (title) => title.textContent), 'One head has to divide itself');
      assert.equal(await page.$eval('#story-lean', (input) => input.value), '50');
      assert.match(await live(page), /^Head 1 gives 49/);
      await close();
    },
  },
];
