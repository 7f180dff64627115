// The page's security policy: it forbids markup and scripts of others, and no part of the page violates it.

import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { eventually, offlineCopyReady, openPage, patientPage, settled, snapshot, startBrokenServer, startServer, until } from './harness.mjs';
import { startPlainServer } from './hosts.mjs';

const inPage =
  "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; object-src 'none'; " +
  "base-uri 'none'; require-trusted-types-for 'script'; trusted-types multihead";
const inHeader = `${inPage}; frame-ancestors 'none'`;

/** Has the browser report violations of the header's policy, by the page and by its workers. */
async function startReportingServer() {
  const server = await startServer();
  const reports = [];
  server.server.prependListener('request', (request, response) => {
    if (request.url === '/violation') request.on('data', (part) => reports.push(String(part)));
    const { writeHead } = response;
    response.writeHead = (status, headers) => {
      const { 'Content-Security-Policy': policy } = headers;
      return writeHead.call(response, status, { ...headers, ...(policy && { 'Content-Security-Policy': `${policy}; report-uri /violation` }) });
    };
  });
  return { ...server, reports };
}

/** Collects the page's violations as `window.violations`. */
const watch = (page) =>
  page.evaluateOnNewDocument(() => {
    window.violations = [];
    document.addEventListener('securitypolicyviolation', ({ violatedDirective, sample }) => {
      window.violations.push(`${violatedDirective}: ${sample}`);
    });
  });

/** Gives the names of the attempts that end with an error; "missing" where the browser has no Trusted Types. */
const attempts = () => {
  const { trustedTypes } = globalThis;
  if (!trustedTypes) return 'missing';
  const own = [...performance.getEntriesByType('resource')].map(({ name }) => name).find((name) => /\.js$/.test(name));
  const tries = {
    markup: () => (document.createElement('p').innerHTML = '<b>bold</b>'),
    template: () => (document.createElement('template').innerHTML = '<b>bold</b>'),
    script: () => (document.createElement('script').src = own),
    worker: () => new Worker(own, { type: 'module' }),
    policy: () => trustedTypes.createPolicy('another', { createScriptURL: (address) => address }),
    'second of the name': () => trustedTypes.createPolicy('multihead', { createScriptURL: (address) => address }),
  };
  return Object.keys(tries)
    .filter((name) => {
      try {
        tries[name]();
        return false;
      } catch (error) {
        return error instanceof TypeError;
      }
    })
    .join(', ');
};

const refused = 'markup, template, script, worker, policy, second of the name';

/** Uses every part of the page that starts a script or shows markup. */
async function useEverything(page) {
  await page.click('.preset:not([hidden])');
  for (const id of await page.$$eval('.step', (tabs) => tabs.map((tab) => tab.id))) {
    await page.$eval(`#${id}`, (tab) => tab.click());
    await settled(page);
    assert.ok(await page.$eval('.layer.is-current math', (math) => math.namespaceURI.endsWith('MathML') && math.textContent.length > 5));
  }
  await page.evaluate(() => document.querySelector('#train').scrollIntoView());
  await until(page, () => window.multiheadPage.training().status === 'paused');
  await page.$eval('#train-go', (button) => button.click());
  await until(page, () => window.multiheadPage.training().step > 0);
  await page.$eval('#train-go', (button) => button.click());
  await page.evaluate(() => {
    const transfer = { types: ['Files'], files: [new File(['{"model_type":"gpt2"}'], 'config.json'), new File(['x'], 'no.safetensors')] };
    document.dispatchEvent(Object.defineProperty(new Event('drop', { cancelable: true }), 'dataTransfer', { value: transfer }));
  });
  await until(page, () => /config\.json|no\.safetensors/.test(document.querySelector('.own-status').textContent));
  await page.$eval('#run-speed', (button) => button.click());
  await until(page, () => /^(Done|The measurement)/.test(document.querySelector('#speed [role=status]').textContent));
  const rows = await page.$$eval('#speed .speed-row', (list) => list.map((row) => row.textContent));
  assert.match(rows[1], /all workers ?[1-9]\d* workers?, (shared memory|messages)/, 'the pool has workers');
  await offlineCopyReady(page);
}

export const tests = [
  {
    name: 'nothing that the page and its workers do violates their policy, and the policy forbids markup, scripts and policies of others',
    async run({ browser, kind }) {
      const server = await startReportingServer();
      const { page, close } = await openPage(browser, `${server.url}#speed=sentence`, { prepare: watch });
      await useEverything(page);
      assert.deepEqual(await page.evaluate(() => window.violations), []);
      assert.deepEqual(server.reports, []);
      // The other way round: these are reported, so the silence above means something.
      const seen = await page.evaluate(attempts);
      if (kind === 'chromium') assert.equal(seen, refused);
      else assert.ok([refused, 'missing'].includes(seen), seen);
      if (seen !== 'missing') {
        assert.ok((await page.evaluate(() => window.violations.length)) > 0);
        await eventually(() => server.reports.length > 0);
        assert.match(server.reports.join(), /trusted-types/);
      }
      await close({ expected: /TrustedHTML|TrustedScriptURL|TrustedTypePolicy|[Tt]rusted|Content.Security.Policy|status of 405/ });
      await server.close();
      return seen === 'missing' ? 'no Trusted Types' : '';
    },
  },
  {
    name: 'the policy holds on a server without headers, too',
    async run({ browser, kind }) {
      const server = await startPlainServer('/a/');
      const { page, close } = await openPage(browser, `${server.url}#speed=sentence`, { prepare: watch });
      assert.equal(await page.$eval('meta[http-equiv=Content-Security-Policy]', (meta) => meta.content), inPage);
      await useEverything(page);
      assert.deepEqual(await page.evaluate(() => window.violations), []);
      const seen = await page.evaluate(attempts);
      assert.ok(seen === refused || (seen === 'missing' && kind !== 'chromium'), seen);
      await close({ expected: /TrustedHTML|TrustedScriptURL|TrustedTypePolicy|[Tt]rusted|Content.Security.Policy/ });
      await server.close();
    },
  },
  {
    name: 'a worker under the policy starts no script from an address in a text',
    async run({ browser, kind }) {
      const server = await startBrokenServer(async (folder, assets) => {
        const file = join(
          folder,
          'assets',
          assets.find((name) => /^speed_worker.*\.js$/.test(name)),
        );
        const pool = assets.find((name) => /^pool_worker.*\.js$/.test(name));
        const tries = `setTimeout(() => {
          const refused = ['${pool}', 'own.js', 'pool_worker-1.js?x', '../pool_worker-1.js', 'https://example.org/pool_worker-1.js', 'data:text/javascript,1']
            .filter((address) => {
              try { new Worker(address, { type: 'module' }); return false; } catch (error) { return error instanceof TypeError; }
            });
          postMessage({ event: { kind: 'step', what: 'trustedTypes' in self ? 'refused ' + refused.length : 'missing' } });
        });`;
        await writeFile(file, `${tries}\n${await readFile(file, 'utf8')}`);
      });
      const { page, close } = await openPage(browser, `${server.url}#speed=sentence`);
      await page.evaluate(() => {
        window.said = [];
        const line = document.querySelector('#speed [role=status]');
        new MutationObserver(() => window.said.push(line.textContent)).observe(line, { childList: true });
      });
      await page.$eval('#run-speed', (button) => button.click());
      await until(page, () => window.said.some((text) => /^(refused|missing)/.test(text)));
      const said = (await page.evaluate(() => window.said)).find((text) => /^(refused|missing)/.test(text));
      assert.ok(said === 'refused 6…' || (said === 'missing…' && kind !== 'chromium'), said);
      await close({ expected: /TrustedScriptURL|[Tt]rusted|Content.Security.Policy|Worker/ });
      await server.close();
    },
  },
  {
    name: 'no other page can show this one in a frame',
    async run({ browser }) {
      const server = await startServer();
      const { headers } = await fetch(server.url);
      assert.equal(headers.get('content-security-policy'), inHeader);
      const around = await startBrokenServer((folder) => writeFile(join(folder, 'around.html'), `<iframe src="${server.url}"></iframe>`));
      around.server.prependListener('request', (_, response) => {
        const { writeHead } = response;
        response.writeHead = (status, { 'Content-Type': type }) => writeHead.call(response, status, { 'Content-Type': type });
      });
      const context = await browser.createBrowserContext();
      const page = await patientPage(context);
      await page.goto(`${around.url}around.html`);
      const shown = page.frames().filter((frame) => frame.url().startsWith(server.url));
      const texts = await Promise.all(shown.map((frame) => frame.evaluate(() => document.body?.innerText ?? '').catch(() => '')));
      assert.ok(!texts.some((text) => text.includes('attention')), texts.join());
      await context.close();
      await around.close();
      await server.close();
    },
  },
  {
    name: 'the page fetches the one WebAssembly build that its worker uses, also in Chromium 114 to 129, which has relaxed SIMD',
    async run({ browser }) {
      const old = `Object.defineProperty(navigator, 'userAgent', { value: 'Mozilla/5.0 Chrome/129.0.0.0 Safari/537.36' });`;
      const server = await startBrokenServer(async (folder, assets) => {
        for (const name of assets.filter((each) => /^(boot|attention_worker)-.*\.js$/.test(each))) {
          const file = join(folder, 'assets', name);
          await writeFile(file, `${old}\n${await readFile(file, 'utf8')}`);
        }
      });
      const { page, close } = await openPage(browser, server.url);
      const { backend } = await snapshot(page);
      assert.equal(backend.simd, 'simd128');
      // The copy for use without a network has the module of models, too.
      const fetched = new Set(server.requested.filter((path) => path.endsWith('.wasm') && !path.includes('-models-')));
      assert.deepEqual(
        [...fetched].map((path) => path.replace(/-[\w-]{8}\.wasm$/, '')),
        ['/assets/multihead-simd128'],
      );
      await close();
      await server.close();
    },
  },
];
