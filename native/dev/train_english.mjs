// `npm run train-english`: makes an English model of the page, with the package's own trainer: fetches the text from Debian,
// learns a vocabulary, trains, and measures what each head looks at. Takes about ten minutes on an idle core.
//
//   --model KIND  words: of the first screen, web/src/novels; pairs: of "Your own model", web/public/english. Default pairs
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

const USAGE = 'Usage: npm run train-english -- [--model pairs|words] [--steps N] [--seed N] [--to FOLDER]';

const FOLDERS = { pairs: 'web/public/english', words: 'web/src/novels' };

function readArguments(args) {
  const text = { type: 'string' };
  try {
    const { values } = parseArgs({ args, options: { model: text, steps: text, seed: text, to: text } });
    const whole = (name, least) => {
      if (values[name] === undefined) return {};
      if (!/^\d{1,9}$/.test(values[name]) || Number(values[name]) < least) {
        throw new Error(`--${name}: expected a whole number, ${least} or more, got ${values[name]}`);
      }
      return { [name]: Number(values[name]) };
    };
    const kind = values.model ?? 'pairs';
    if (!Object.hasOwn(FOLDERS, kind)) throw new Error(`--model: expected pairs or words, got ${kind}`);
    return { kind, recipe: { ...whole('steps', 1), ...whole('seed', 0) }, to: values.to ?? join(ROOT, FOLDERS[kind]) };
  } catch (error) {
    throw new UsageError(error.message, USAGE);
  }
}

runAsProgram(import.meta.url, async (...args) => {
  const { kind, recipe, to } = readArguments(args);
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
  const files = await makeModel({ text, kind, recipe, say });
  for (const [name, content] of Object.entries(files)) await writeFile(join(to, name), content);
  say(
    `${to}: ${Object.values(files)
      .reduce((sum, content) => sum + content.length, 0)
      .toLocaleString('en')} bytes`,
  );
});
