// `npm run bench -- [native|wasm|browser|page …] [options]`: builds and runs the benchmarks; --help lists the options.
//
// Names, fields and units of the results are the same on every platform: native/BENCHMARKS.md explains them.
import { readFileSync, writeFileSync } from 'node:fs';
import { cpus, loadavg } from 'node:os';
import { header, machineLine, row } from '../../bindings/bench/rows.mjs';
import { buildForPage, buildPackage, buildPreset, buildWasm } from './build.mjs';
import { SetupError, say } from './console.mjs';
import { HELP, readArguments } from './bench/arguments.mjs';
import { chart } from './bench/chart.mjs';
import { complaintsOf } from './bench/document.mjs';
import { installPeers, nativePeers } from './bench/peers.mjs';
import { nativeRun, wasmRun } from './bench/programs.mjs';
import { markdown } from './bench/table.mjs';
import { runAsProgram } from './program.mjs';
import { setup } from './setup.mjs';

async function build(where) {
  const manifest = await setup({ purpose: where.every((name) => name === 'wasm') ? 'start' : 'test' });
  if (where.includes('native')) await buildPreset('native', { target: 'multihead-bench' });
  if (where.includes('wasm') || where.includes('browser')) {
    await buildWasm();
    await buildPackage();
  }
  if (where.includes('page')) await buildForPage();
  for (const browser of ['chromium', 'firefox']) {
    if (manifest[browser]) process.env[`${browser.toUpperCase()}_PATH`] ??= manifest[browser];
  }
}

/** The requested runs, as streams of events. */
async function runsOf(options) {
  const builds = options.simd === 'both' ? ['relaxed', 'simd128'] : [options.simd];
  const kinds = {
    native: () => [nativeRun(options)],
    wasm: () => builds.map((simd) => wasmRun({ ...options, simd })),
    browser: async () => {
      // Import this only after the set-up, because it needs npm packages that the set-up installs.
      const { browserRuns } = await import('./bench/browser.mjs');
      return browserRuns({ ...options, builds });
    },
  };
  const runs = [];
  for (const name of options.where) runs.push(...((await kinds[name]?.()) ?? []));
  return runs;
}

/** Prints the results of a run as they arrive; returns { machine, benchmarks }. */
async function follow(events) {
  let machine = null;
  const benchmarks = [];
  for await (const event of events) {
    if (event.machine) {
      machine = { ...event.machine, cpu: cpus()[0].model.trim(), load: loadavg()[0], date: new Date().toISOString() };
      say(`\n${machineLine(machine)}\n${header()}`);
    } else {
      benchmarks.push(event.benchmark);
      say(row(event.benchmark));
    }
  }
  return { machine, benchmarks };
}

async function addNativePeers(run, options) {
  say(`\nIn turns with ONNX Runtime\n${header()}`);
  const compared = new Map();
  for await (const benchmark of nativePeers(run.benchmarks, options)) {
    compared.set(benchmark.name, benchmark);
    say(row(benchmark));
  }
  return { ...run, benchmarks: run.benchmarks.map((benchmark) => compared.get(benchmark.name) ?? benchmark) };
}

async function measure(options) {
  if (options.build) await build(options.where);
  const peersFolder = options.peers ? await installPeers() : undefined;
  const runs = [];
  for (const events of await runsOf({ ...options, peersFolder })) {
    const run = await follow(events);
    if (!run.machine) continue; // the reason was printed before
    runs.push(options.peers && run.machine.runner === 'native' ? await addNativePeers(run, options) : run);
  }
  return { runs };
}

function read(files) {
  return {
    runs: files.flatMap((file) => {
      const document = JSON.parse(readFileSync(file, 'utf8'));
      const complaints = complaintsOf(document);
      if (complaints.length) throw new SetupError(`--from: ${file} is not a file written by --json: ${complaints[0]}`);
      return document.runs;
    }),
  };
}

runAsProgram(import.meta.url, async (...args) => {
  const options = readArguments(args);
  if (options.help) return say(HELP);
  const document = options.from ? read(options.from) : await measure(options);
  if (options.where.includes('page') && !options.from) {
    const { printPageBenchmarks } = await import('./bench/page.mjs'); // after the set-up, as above
    await printPageBenchmarks(options);
    if (options.where.length === 1) return;
  }
  if (!document.runs.some(({ benchmarks }) => benchmarks.length)) {
    throw new SetupError(`--filter: expected a regular expression that some name matches; got ${options.filter}`);
  }
  if (options.json) writeFileSync(options.json, `${JSON.stringify(document, null, 2)}\n`);
  if (options.chart) writeFileSync(options.chart, chart(document));
  if (options.markdown) say(`\n${markdown(document)}`);
});
