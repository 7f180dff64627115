// `npm run train-english`: makes the small English model of the page, web/public/english, with the package's own trainer: fetches
// the text from Debian, learns a vocabulary, trains, and measures what each head looks at. Takes about ten minutes on an idle core.
//
//   --steps N     fewer than the recipe's, to try it
//   --seed N      of the first parameters and of the order of the text
//   --to FOLDER   another folder
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { ROOT, buildPackage } from './build.mjs';
import { UsageError, say, step } from './console.mjs';
import { readText } from './english/text.mjs';
import { runAsProgram } from './program.mjs';
import { setup } from './setup.mjs';

const USAGE = 'Usage: npm run train-english -- [--steps N] [--seed N] [--to FOLDER]';

function readArguments(args) {
  const text = { type: 'string' };
  try {
    const { values } = parseArgs({ args, options: { steps: text, seed: text, to: text } });
    const whole = (name, least) => {
      if (values[name] === undefined) return {};
      if (!/^\d{1,9}$/.test(values[name]) || Number(values[name]) < least) {
        throw new Error(`--${name}: expected a whole number, ${least} or more, got ${values[name]}`);
      }
      return { [name]: Number(values[name]) };
    };
    return { recipe: { ...whole('steps', 1), ...whole('seed', 0) }, to: values.to ?? join(ROOT, 'web', 'public', 'english') };
  } catch (error) {
    throw new UsageError(error.message, USAGE);
  }
}

runAsProgram(import.meta.url, async (...args) => {
  const { recipe, to } = readArguments(args);
  await setup({ purpose: 'start' });
  await buildPackage();
  const folder = join(ROOT, 'build', 'english');
  await mkdir(folder, { recursive: true });
  const text = await step('text', async (tell) => {
    const read = await readText(folder);
    tell(`${read.training.length + read.heldOut.length} paragraphs`);
    return read;
  });
  // Import this only after the build, which makes the package.
  const { makeModel } = await import('./english/make_model.mjs');
  await mkdir(to, { recursive: true });
  const files = await makeModel({ text, recipe, say });
  for (const [name, content] of Object.entries(files)) await writeFile(join(to, name), content);
  say(
    `${to}: ${Object.values(files)
      .reduce((sum, content) => sum + content.length, 0)
      .toLocaleString('en')} bytes`,
  );
});
