// `npm run docs`: builds the JavaScript and C++ references and the guides into build/docs, as static files. A warning
// of TypeDoc or Doxygen, for instance about a public name without documentation, is an error.
import { readFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { ROOT } from './build.mjs';
import { run, say, step } from './console.mjs';
import { runAsProgram } from './program.mjs';
import { setup } from './setup.mjs';

const TOOLS = join(ROOT, 'native', 'dev', 'docs');
const OUT = join(ROOT, 'build', 'docs');

runAsProgram(import.meta.url, async () => {
  const { doxygen } = await setup({ purpose: 'docs' });
  const { writeGuides } = await import('./docs/guides.mjs'); // needs packages that the set-up installs
  const { version } = JSON.parse(readFileSync(join(ROOT, 'bindings', 'package.json'), 'utf8'));
  await rm(OUT, { recursive: true, force: true });

  await step('Guides', async (tell) => tell(`${await writeGuides(OUT)} pages`));
  await step('C++ reference', (tell) => {
    tell(`Doxygen ${doxygen.version}`);
    const env = { ...process.env, MULTIHEAD_VERSION: version };
    return run([doxygen.path, join(TOOLS, 'Doxyfile')], { cwd: ROOT, env });
  });
  await step('JavaScript reference', async (tell) => {
    await run([process.execPath, join('bindings', 'tables.mjs')], { cwd: ROOT }); // sources that are generated
    const typedoc = join(TOOLS, 'node_modules', 'typedoc', 'bin', 'typedoc');
    tell(await run([process.execPath, typedoc, '--version'], { cwd: ROOT }).then((said) => said.trim().split('\n')[0]));
    await run([process.execPath, typedoc, '--options', join(TOOLS, 'typedoc.json')], { cwd: ROOT });
  });
  say('build/docs/index.html');
});
