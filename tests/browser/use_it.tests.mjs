// "Use it": the program for the numbers on the screen, the file that it reads, and the link.

import assert from 'node:assert/strict';
import { openPage, settled, snapshot, until } from './harness.mjs';

const program = (page) => page.$eval('#use-it code', (code) => code.textContent);
const press = (page, label) =>
  page.$$eval('#use-it button', (buttons, wanted) => buttons.find(({ textContent }) => textContent.startsWith(wanted)).click(), label);

export const tests = [
  {
    name: 'use it: the program follows the screen, in both languages',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#text=the+black+cat+sat+on+the+mat&causal=1&head=2&query=3`);
      const javaScript = await program(page);
      assert.match(javaScript, /numHeads: 4, headDim: 16/);
      assert.match(javaScript, /causal: 'topLeft'/);
      assert.match(javaScript, /\/\/ Head 2, query 3: its weight on each of the 7 keys\./);
      await page.evaluate(() => document.querySelector('#causal').click());
      await settled(page);
      assert.doesNotMatch(await program(page), /causal/);
      await press(page, 'C++');
      await until(page, () => document.querySelector('#use-it code').textContent.includes('int main()'));
      assert.match(await page.evaluate(() => location.hash), /language=cpp/);
      await close();
    },
  },
  {
    name: 'use it: the file that is saved holds the sentence and the weights of the screen',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#text=the+black+cat+sat+on+the+mat`);
      const shown = await snapshot(page);
      // Catch the file that the browser would write to the disk.
      await page.evaluate(() => {
        window.saved = new Promise((done) => {
          URL.createObjectURL = (blob) => (blob.arrayBuffer().then(done), 'about:blank');
        });
        HTMLAnchorElement.prototype.click = () => {};
      });
      await press(page, 'Save sentence.safetensors');
      const text = await page.evaluate(async () => btoa(String.fromCharCode(...new Uint8Array(await window.saved).slice(0))));
      const { readSafetensors } = await import('../../bindings/dist/index.js');
      const { tensors, metadata } = readSafetensors(new Uint8Array(Buffer.from(text, 'base64')));
      assert.deepEqual([...tensors.x.data], [...shown.trace.x.data]);
      assert.deepEqual(tensors.x.shape, [1, 7, 64]);
      assert.deepEqual([...tensors.q_proj_weight.data], [...shown.weights.qProj]);
      assert.deepEqual([...tensors['out_proj.weight'].data], [...shown.weights.outProj]);
      assert.equal(metadata.sentence, shown.tokens.join(' '));
      await close();
    },
  },
  {
    name: 'use it: the link is copied; where that is forbidden, it is shown to be copied by hand',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#text=two+words`);
      const withClipboard = (writeText) =>
        page.evaluate((code) => {
          const write = code === 'keep' ? async (text) => void (window.copied = text) : () => Promise.reject(new Error());
          Object.defineProperty(navigator, 'clipboard', { value: { writeText: write }, configurable: true });
        }, writeText);
      await withClipboard('keep');
      await press(page, 'Copy a link');
      await until(page, () => window.copied !== undefined);
      assert.equal(await page.evaluate(() => window.copied), `${url}#text=two+words`);
      await withClipboard('refuse');
      await press(page, 'Copy a link');
      await until(page, () => document.activeElement.className === 'copy-field');
      const selected = await page.evaluate(() => {
        const { value, selectionStart, selectionEnd } = document.activeElement;
        return value.slice(selectionStart, selectionEnd);
      });
      assert.equal(selected, `${url}#text=two+words`);
      await close();
    },
  },
];
