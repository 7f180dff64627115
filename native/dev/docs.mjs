// `npm run docs`: builds the guides and the references of JavaScript and C++ into build/docs, as static files with a search
// that needs no server. A warning of TypeDoc or Doxygen, for instance about a public name without documentation, is an error.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT } from './build.mjs';
import { run, say, step } from './console.mjs';
import { runAsProgram } from './program.mjs';
import { setup } from './setup.mjs';

const TOOLS = join(ROOT, 'native', 'dev', 'docs');

runAsProgram(import.meta.url, async () => {
  const { doxygen } = await setup({ purpose: 'docs' });
  const { version } = JSON.parse(readFileSync(join(ROOT, 'bindings', 'package.json'), 'utf8'));

  // First: TypeDoc empties build/docs.
  await step('Guides and JavaScript reference', async (tell) => {
    await run([process.execPath, join('bindings', 'tables.mjs')], { cwd: ROOT }); // sources that are generated
    const typedoc = join(TOOLS, 'node_modules', 'typedoc', 'bin', 'typedoc');
    tell(await run([process.execPath, typedoc, '--version'], { cwd: ROOT }).then((said) => said.trim().split('\n')[0]));
    await run([process.execPath, typedoc, '--options', join(TOOLS, 'typedoc.json')], { cwd: ROOT });
  });
  await step('C++ reference', (tell) => {
    tell(`Doxygen ${doxygen.version}`);
    const env = { ...process.env, MULTIHEAD_VERSION: version };
    return run([doxygen.path, join(TOOLS, 'Doxyfile')], { cwd: ROOT, env });
  });
  say('build/docs/index.html');
});
