// `npm start`: sets up, builds the page and serves it until it is stopped.
import { join } from 'node:path';
import { ROOT, buildPackage, buildPage, buildWasm } from './build.mjs';
import { say } from './console.mjs';
import { runAsProgram } from './program.mjs';
import { setup } from './setup.mjs';
import { serve, wishedAddress } from '../../web/serve.mjs';

runAsProgram(import.meta.url, async () => {
  const begun = performance.now();
  await setup({ purpose: 'start' });
  await buildWasm({ tests: false });
  await buildPackage();
  await buildPage();
  const { url } = await serve({ root: join(ROOT, 'build', 'web'), ...wishedAddress() });
  say(`\nServed after ${((performance.now() - begun) / 1000).toFixed(1)} s.`);
  say(`Open ${url} in a browser. Ctrl-C stops it.`);
});
