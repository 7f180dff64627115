// `npm start`: sets up, builds the page and serves it until it is stopped.
import { join } from 'node:path';
import { ROOT, buildForPage } from './build.mjs';
import { SetupError, say } from './console.mjs';
import { runAsProgram } from './program.mjs';
import { setup } from './setup.mjs';
import { serve, wishedAddress } from '../../web/serve.mjs';

/** What is wrong with an address is no fault of the program: it is said without a stack. */
async function plainly(work) {
  try {
    return await work();
  } catch (error) {
    throw new SetupError(error.message, 'The variables PORT and HOST say where the page is served.');
  }
}

runAsProgram(import.meta.url, async () => {
  const begun = performance.now();
  const address = await plainly(wishedAddress); // before anything that takes time
  await setup({ purpose: 'start' });
  await buildForPage();
  const { url } = await plainly(() => serve({ root: join(ROOT, 'build', 'web'), ...address }));
  say(`\nServed after ${((performance.now() - begun) / 1000).toFixed(1)} s.`);
  say(`Open ${url} in a browser. Ctrl-C stops it.`);
});
