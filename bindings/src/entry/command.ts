#!/usr/bin/env node
// The file of `npx multihead`.

import { readFile } from 'node:fs/promises';
import process from 'node:process';
import { main } from '../command/main.js';
import { openModel, openSparseAutoencoder, saveModel } from './models_node.js';

const { version } = JSON.parse(await readFile(new URL('../package.json', import.meta.url), 'utf8')) as { version: string };
process.exitCode = await main(process.argv.slice(2), {
  openModel,
  saveModel,
  openSparseAutoencoder,
  loadBench: () => import('./benchmarks.js'),
  version,
  process,
});
