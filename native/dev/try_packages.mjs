// `npm run try-packages`: installs the packed npm package into a new project per environment (bundlers, frameworks,
// runtimes, compilers; see rows.mjs), runs the results in Node and in browsers, and prints a table.
//
//   npm run try-packages -- [part of a row's name] [--keep]
//
// The tools come from npm's registry. --keep leaves the projects in build/try-packages.
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { findBrowsers } from '../../tests/browser/browsers.mjs';
import { ROOT, buildPackage, buildWasm } from './build.mjs';
import { SetupError, UsageError, run, say, step } from './console.mjs';
import { Project } from './packages/project.mjs';
import { ROWS } from './packages/rows.mjs';
import { npmProgram, runAsProgram } from './program.mjs';
import { setup } from './setup.mjs';

const FOLDER = join(ROOT, 'build', 'try-packages');

async function pack() {
  const words = ['pack', '--json', '--pack-destination', FOLDER];
  const said = await run([...npmProgram(), ...words], { cwd: join(ROOT, 'bindings') });
  return join(FOLDER, JSON.parse(said.slice(said.indexOf('[')))[0].filename);
}

async function tryRow(row, index, shared) {
  const project = new Project({ ...shared, folder: join(FOLDER, `row-${index}`), tools: row.tools });
  try {
    return await step(row.name, async (tell) => {
      await project.install();
      await row.run(project);
      const seen = [...project.seen].join(', ');
      tell(seen);
      return { ...row, seen };
    });
  } catch (error) {
    if (!(error instanceof SetupError)) throw error;
    return { ...row, failure: error.message };
  }
}

runAsProgram(import.meta.url, async (...args) => {
  const { values, positionals } = parseArgs({ args, options: { keep: { type: 'boolean' } }, allowPositionals: true });
  const chosen = ROWS.filter(({ name }) => positionals.every((part) => name.includes(part)));
  if (!chosen.length) throw new UsageError(`No row has "${positionals.join('" and "')}" in its name`);
  const manifest = await setup({ purpose: 'test' });
  for (const browser of ['chromium', 'firefox']) {
    if (manifest[browser]) process.env[`${browser.toUpperCase()}_PATH`] ??= manifest[browser];
  }
  await buildWasm();
  await buildPackage();
  await rm(FOLDER, { recursive: true, force: true });
  await mkdir(FOLDER, { recursive: true });
  const tarball = await pack();

  const browsers = [];
  const results = [];
  try {
    for (const { name, launch, reason } of findBrowsers()) {
      if (launch) browsers.push({ name, browser: await launch() });
      else say(`  ${reason}`);
    }
    for (const [index, row] of chosen.entries()) results.push(await tryRow(row, index, { tarball, browsers }));
  } finally {
    await Promise.all(browsers.map(({ browser }) => browser.close()));
    if (!values.keep) await rm(FOLDER, { recursive: true, force: true });
  }

  const failed = results.filter(({ failure }) => failure);
  for (const { name, failure } of failed) say(`\n${name}:\n${failure}\n`);
  say('\n| environment | needs |\n|---|---|');
  for (const { name, needs, failure } of results) say(`| ${name} | ${failure ? 'FAILED' : (needs ?? 'nothing')} |`);
  say(`\n${results.length - failed.length} of ${results.length} work`);
  process.exitCode = failed.length ? 1 : 0;
});
