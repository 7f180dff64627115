// `npm start [-- --peers]`: sets up, builds the page and serves it until it is stopped.
//
// With --peers, the speed section of the page also offers ONNX Runtime and TensorFlow.js, which are installed into
// build/peers.
import { join } from 'node:path';
import { ROOT, buildPageFirst } from './build.mjs';
import { installPeers } from './bench/peers.mjs';
import { SetupError, UsageError, coreSeconds, say } from './console.mjs';
import { runAsProgram } from './program.mjs';
import { setup } from './setup.mjs';
import { serve, wishedAddress } from '../../web/serve.mjs';

/** Turns an error about PORT or HOST into a SetupError, which is printed without a stack trace. */
async function withAdvice(work) {
  try {
    return await work();
  } catch (error) {
    throw new SetupError(error.message, 'The environment variables PORT and HOST set where the page is served.');
  }
}

runAsProgram(import.meta.url, async (option) => {
  if (option !== undefined && option !== '--peers') throw new UsageError(`Start with what? Expected --peers, got ${option}`);
  const begun = performance.now();
  const address = await withAdvice(wishedAddress); // checked before the slow steps
  await setup({ purpose: 'start' });
  if (option) await installPeers();
  const arrival = await buildPageFirst();
  const { url } = await withAdvice(() => serve({ root: join(ROOT, 'build', 'web'), ...address, arrival }));
  const used = coreSeconds();
  say(`\nServed after ${((performance.now() - begun) / 1000).toFixed(1)} s${used && `, ${used}`}.`);
  say(`Open ${url} in a browser. Ctrl-C stops it.`);
});
