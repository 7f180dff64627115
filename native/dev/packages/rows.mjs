// The environments in which `npm run try-packages` tries the package. `needs`: the configuration lines that a row
// requires, also in the table of bindings/README.md; missing if it needs none.
import { blobWorkers } from './project.mjs';
import * as sources from './sources.mjs';

const { FILES, INLINE, call, html, page, pages, program, required } = sources;
const platform = process.platform === 'win32' ? 'win' : process.platform;
const nodePackage = `node-${platform}-${process.arch}`; // npm package with Node's program
const nodeProgram = `node_modules/${nodePackage}/bin/node`;
const copyFiles = '`cp node_modules/multihead/dist/{*.wasm,*_worker.js} out/`';
// Its script for text is a file of its own, and by default these versions make a worker's script one file.
const modulesInWorkers = "for `multihead/models`, `worker: { format: 'es' }` in `vite.config.js`";
const inline = "`import { load } from 'multihead/inline'`";

/** Runs with another version of Node: import, require(), and a CommonJS program. */
const nodeRow = (version) => ({
  name: `Node ${version}: import and require()`,
  tools: [`${nodePackage}@${version}`],
  async run(project) {
    const main = `${required(call())}call().then(console.log);\n`;
    await project.write({ 'call.js': call(), 'main.js': program(), 'main.cjs': main });
    for (const file of ['main.js', 'main.cjs']) await project.expectOutput([nodeProgram, file], `node ${version}`);
  },
});

const runtimeRow = (name, tool, command) => ({
  name,
  tools: [tool],
  async run(project) {
    await project.write({ 'call.js': call(), 'main.js': program() });
    await project.expectOutput(command, name.split(' ')[0].toLowerCase());
  },
});

/** Plug'n'Play: the packages stay in archives, and there is no node_modules. */
const yarnRow = {
  name: "Yarn 4, Plug'n'Play",
  tools: ['@yarnpkg/cli-dist@4'],
  async run(project) {
    const yarn = ['node', project.at('node_modules', '@yarnpkg', 'cli-dist', 'bin', 'yarn.js')];
    const manifest = { private: true, type: 'module', dependencies: { multihead: `file:${project.tarball}` } };
    await project.write({
      'pnp/package.json': JSON.stringify(manifest),
      'pnp/yarn.lock': '',
      'pnp/.yarnrc.yml': 'enableGlobalCache: false\nenableTelemetry: false\n',
      'pnp/call.js': call(),
      'pnp/main.js': program(),
    });
    const inFolder = { cwd: project.at('pnp'), env: { ...project.env, CI: '', YARN_ENABLE_IMMUTABLE_INSTALLS: 'false' } };
    await project.run([...yarn, 'install'], inFolder);
    await project.expectOutput([...yarn, 'node', 'main.js'], 'node', inFolder);
  },
};

const cloudflareRow = {
  name: 'Cloudflare Workers: wrangler 4, without threads',
  tools: ['wrangler@4'],
  async run(project) {
    const main = "import { call } from './call.js';\nexport default { fetch: async () => new Response(`<p>${await call()}</p>`) };\n";
    const config = { name: 'row', main: 'main.js', compatibility_date: '2026-01-01' };
    await project.write({ 'call.js': call(), 'main.js': main, 'wrangler.json': JSON.stringify(config) });
    const env = { WRANGLER_SEND_METRICS: 'false' };
    await project.withServer(['wrangler', 'dev', '--ip', '127.0.0.1', '--port', 'PORT'], (url) => project.expectHtml(url, 'workerd'), { env });
  },
};

const modes = [
  ['node16', 'node16'],
  ['nodenext', 'nodenext'],
  ['esnext', 'bundler'],
];
const modeNames = '`node16`, `nodenext`, `bundler`';

const typescriptRow = (version, modes, names) => ({
  name: `TypeScript ${version}: ${names}, with and without the DOM library`,
  tools: [`typescript@${version}`],
  async run(project) {
    const text = ['multihead', 'multihead/core', 'multihead/inline', 'multihead/models', 'multihead/pool', 'multihead/training', 'multihead/lab']
      .map((entry, index) => `import * as e${index} from '${entry}';\nexport const f${index}: object = e${index};\n`)
      .join('');
    await project.write({ 'main.ts': `${text}using x = (await e0.load()).tensor([1]);\nexport const s: readonly number[] = x.shape;\n` });
    for (const [module, moduleResolution] of modes) {
      for (const lib of [['es2022'], ['es2022', 'dom']]) {
        const compilerOptions = { strict: true, noEmit: true, target: 'es2022', types: [], lib, module, moduleResolution };
        await project.write({ 'tsconfig.json': JSON.stringify({ compilerOptions, files: ['main.ts'] }) });
        await project.run(['tsc']);
      }
    }
    project.seen.add('tsc');
  },
});

/** Runs under a test runner, in Node and in a simulated browser, whose Blobs cannot be read as openModel() does. */
const testRunnerRow = (name, tools, { needs, env, command, imports = '', inJsdom = { ...FILES, openModel: undefined } }) => ({
  name: `${name}: \`node\` and \`jsdom\` environments`,
  tools,
  needs,
  async run(project) {
    const tests = `${imports}import { call } from './call.js';
test('a call', async () => expect(await call()).toMatch(/^ok/));
`;
    for (const [environment, modules] of [
      ['node', FILES],
      ['jsdom', inJsdom],
    ]) {
      await project.write({ 'call.js': call(modules), 'call.test.js': tests });
      await project.run([...command, environment], { env: { ...project.env, ...env } });
      project.seen.add(environment);
    }
  },
});

const viteRow = (version, what, { modules, needs, config = '', worker, dev }) => ({
  name: `Vite ${version}, ${what}`,
  tools: [`vite@${version}`],
  needs,
  async run(project) {
    await project.write({ ...pages(modules), 'vite.config.js': `export default { ${config} };\n` });
    const root = worker ? 'with-worker' : '.';
    if (dev) {
      const command = ['vite', '--host', '127.0.0.1', '--port', 'PORT', '--strictPort'];
      return project.withServer(command, async (url) => {
        await project.expectPage({ url });
        await project.expectPage({ url, path: 'with-worker/' });
      });
    }
    await project.run(['vite', 'build', root, '--outDir', project.at('out'), '--config', 'vite.config.js']);
    return project.expectPage({ site: 'out' });
  },
});

/**
 * Rows for a bundler that does not copy the .wasm: once with multihead/inline, once with the files copied next to its
 * output.
 */
const bundlerRows = (name, tools, build) => [
  {
    name: `${name}, \`multihead/inline\``,
    tools,
    needs: inline,
    async run(project) {
      await project.write(pages(INLINE));
      await build(project, 'main.js');
      await project.write({ 'out/index.html': html });
      await project.expectPage({ site: 'out', policy: blobWorkers });
    },
  },
  {
    name: `${name}, \`multihead\``,
    tools,
    needs: copyFiles,
    async run(project) {
      await project.write(pages(FILES));
      await build(project, 'main.js');
      await project.write({ 'out/index.html': html });
      await project.run(['node', '-e', copyScript]);
      await project.expectPage({ site: 'out' });
    },
  },
];
const copyScript = `
  const { cpSync, readdirSync } = require('node:fs');
  const dist = 'node_modules/multihead/dist/';
  for (const name of readdirSync(dist)) if (/\\.wasm$|_worker\\.js$/.test(name)) cpSync(dist + name, 'out/' + name);`;

/** A row for a server bundle, run in a folder without any other files. */
const serverBundleRow = (name, tools, build) => ({
  name: `${name}, a bundle for Node, moved elsewhere`,
  tools,
  async run(project) {
    await project.write({ 'call.js': call(), 'main.js': program() });
    await build(project);
    await project.moved('out', (folder) => project.expectOutput(['node', 'main.mjs'], 'node', { cwd: folder }));
  },
});

const rollupConfig = `
import resolve from '@rollup/plugin-node-resolve';
export default {
  plugins: [resolve({ exportConditions: process.env.CONDITIONS?.split(',') ?? [] })],
  external: [/^node:/],
};`;
const rollupTools = ['rollup@4', '@rollup/plugin-node-resolve@16'];

const webpackConfig = (entry) => `
export default {
  mode: 'production',
  entry: '${entry}',
  output: { path: process.cwd() + '/out', filename: 'main.js' },
};`;

const parcelExports = '`"@parcel/resolver-default": { "packageExports": true }` in `package.json`';
const parcelManifest = { '@parcel/resolver-default': { packageExports: true } };

/** A row for Parcel, which writes an import map into the page. The policy of the other pages forbids that. */
const parcelRow = (what, { modules, needs, manifest = {}, tools = [] }) => ({
  name: `Parcel 2, ${what}`,
  tools: ['parcel@2', ...tools],
  needs,
  async run(project) {
    await project.write(pages(modules));
    await project.extendManifest(manifest);
    for (const root of ['.', 'with-worker']) {
      await project.run(['parcel', 'build', `${root}/index.html`, '--no-cache', '--dist-dir', 'out', '--no-source-maps']);
      await project.expectPage({ site: 'out', policy: null });
    }
  },
});

const nextFiles = {
  'call.js': call(),
  'next.config.mjs': "export default { output: 'standalone', outputFileTracingRoot: process.cwd() };\n",
  'app/layout.js': 'export default function Layout({ children }) { return <html lang="en"><body>{children}</body></html>; }\n',
  'app/page.js': `import { call } from '../call.js';
export const dynamic = 'force-dynamic';
export default async function Page() { return <p>{await call()}</p>; }
`,
  'app/client/page.js': `'use client';
import { useEffect } from 'react';
import { call } from '../../call.js';
export default function Page() {
  useEffect(() => { call().then((text) => { document.title = text; }); }, []);
  return <p>client</p>;
}
`,
};
const nextTools = ['next@16', 'react@19', 'react-dom@19'];
const nextRow = (name, flags) => ({
  name: `Next.js 16, ${name}: client and server components, standalone output moved elsewhere`,
  tools: nextTools,
  async run(project) {
    await project.write(nextFiles);
    await project.run(['next', 'build', ...flags]);
    // Copy the static files into the standalone folder, which then has everything that the server's page needs.
    await project.run(['node', '-e', "require('node:fs').cpSync('.next/static', '.next/standalone/.next/static', { recursive: true })"]);
    await project.moved('.next/standalone', (folder) =>
      project.withServer(
        ['node', 'server.js'],
        async (url) => {
          await project.expectHtml(url);
          await project.expectPage({ url, path: 'client' });
        },
        { cwd: folder },
      ),
    );
  },
});

/** A row with plain modules from a static server, under `script-src 'self' 'wasm-unsafe-eval'`. */
const plainRow = (name, scripts, modules, { needs, policy } = {}) => ({
  name,
  needs,
  tools: [],
  async run(project) {
    const file = (module) => `./node_modules/multihead/dist/${module.split('/')[1] ?? 'index'}.js`;
    const { load, createPool, openModel } = modules;
    const files = { load: load.map(file), createPool: file(createPool), openModel: openModel && file(openModel) };
    await project.write({ 'index.html': html, ...scripts(files) });
    await project.expectPage({ site: '.', policy });
  },
});

const inlineWorkers = { needs: 'for `createPool`, `worker-src blob:` in the policy', policy: blobWorkers };

const withModule = (main, name, worker) => (files) => ({ 'call.js': call(files), 'main.js': main, [name]: worker() });
const inModule = (files) => ({ 'call.js': call(files), 'main.js': page() });
const inWorker = withModule(sources.workerPage, 'worker.js', sources.worker);
const inServiceWorker = withModule(sources.serviceWorkerPage, 'service_worker.js', sources.serviceWorker);

export const ROWS = [
  nodeRow(20),
  nodeRow(26),
  runtimeRow('Deno 2', 'deno@2', ['deno', 'run', '-A', '--node-modules-dir=manual', 'main.js']),
  runtimeRow('Bun 1', 'bun@1', ['bun', 'run', 'main.js']),
  yarnRow,
  cloudflareRow,
  typescriptRow('5.9', [['esnext', 'node'], ...modes], `\`node\`, ${modeNames}`),
  typescriptRow('7', modes, modeNames),
  testRunnerRow('Vitest 4', ['vitest@4', 'jsdom@27'], {
    command: ['vitest', 'run', '--environment'],
    imports: "import { expect, test } from 'vitest';\n",
  }),
  testRunnerRow('Jest 30', ['jest@30', 'jest-environment-jsdom@30'], {
    needs: '`NODE_OPTIONS=--experimental-vm-modules`, as for every ES module',
    env: { NODE_OPTIONS: '--experimental-vm-modules' },
    command: ['jest', '--env'],
    inJsdom: { load: FILES.load }, // in Jest's, there are no workers
  }),
  plainRow('No bundler: module under a Content-Security-Policy', inModule, FILES),
  plainRow('No bundler: module worker', inWorker, FILES),
  plainRow('No bundler: module service worker', inServiceWorker, FILES),
  plainRow('No bundler, `multihead/inline`: module under a Content-Security-Policy', inModule, INLINE, inlineWorkers),
  plainRow('No bundler, `multihead/inline`: module worker', inWorker, INLINE, inlineWorkers),
  plainRow('No bundler, `multihead/inline`: module service worker', inServiceWorker, INLINE),
  viteRow(8, 'development server', { dev: true }),
  viteRow(8, 'build', {}),
  viteRow(8, 'build with a worker', { worker: true }),
  viteRow(7, 'build with a worker', { worker: true, needs: modulesInWorkers, config: "worker: { format: 'es' }" }),
  ...[7, 5].map((version) =>
    viteRow(version, 'development server', {
      dev: true,
      needs: "`optimizeDeps: { exclude: ['multihead'] }` in `vite.config.js`",
      config: "optimizeDeps: { exclude: ['multihead'] }",
    }),
  ),
  viteRow(5, 'development server, `multihead/inline`', { dev: true, modules: INLINE, needs: inline }),
  viteRow(5, 'build', {}),
  viteRow(5, 'build with a worker', { worker: true, needs: modulesInWorkers, config: "worker: { format: 'es' }" }),
  {
    name: 'webpack 5, page and worker',
    tools: ['webpack@5', 'webpack-cli@7'],
    async run(project) {
      await project.write({ ...pages(FILES), 'out/index.html': html });
      for (const entry of ['./main.js', './with-worker/main.js']) {
        await project.write({ 'webpack.config.js': webpackConfig(entry) });
        await project.run(['webpack']);
        await project.expectPage({ site: 'out' });
      }
    },
  },
  parcelRow('`multihead`: page and worker', { modules: { load: ['multihead'] } }),
  parcelRow('all entry points: page and worker', {
    modules: FILES,
    // Parcel builds nothing if a package that import() names is missing, though its failure is caught.
    tools: ['@huggingface/tokenizers@0.2', '@huggingface/jinja@0.5'],
    needs: `${parcelExports}; for \`multihead/models\`, \`npm install @huggingface/tokenizers @huggingface/jinja\``,
    manifest: parcelManifest,
  }),
  parcelRow('`multihead/inline`', { modules: INLINE, needs: parcelExports, manifest: parcelManifest }),
  ...bundlerRows('Rollup 4', rollupTools, async (project, entry) => {
    await project.write({ 'rollup.config.js': rollupConfig });
    await project.run(['rollup', '-c', 'rollup.config.js', '-i', entry, '-d', 'out']);
  }),
  ...bundlerRows('esbuild', ['esbuild@0.28'], (project, entry) =>
    project.run(['esbuild', entry, '--bundle', '--format=esm', '--outdir=out', '--log-level=warning']),
  ),
  ...bundlerRows('`bun build`', ['bun@1'], (project, entry) => project.run(['bun', 'build', entry, '--outdir', 'out', '--target', 'browser'])),
  serverBundleRow('Rollup 4', rollupTools, async (project) => {
    await project.write({ 'rollup.config.js': rollupConfig });
    const env = { ...project.env, CONDITIONS: 'node' };
    const names = ['--entryFileNames', '[name].mjs', '--chunkFileNames', '[name].mjs'];
    await project.run(['rollup', '-c', 'rollup.config.js', '-i', 'main.js', '-d', 'out', ...names], { env });
  }),
  serverBundleRow('esbuild', ['esbuild@0.28'], async (project) => {
    const words = ['main.js', '--bundle', '--platform=node', '--log-level=error'];
    await project.run(['esbuild', ...words, '--format=cjs', '--outfile=out/main.cjs']);
    await project.moved('out', (folder) => project.expectOutput(['node', 'main.cjs'], 'node', { cwd: folder }));
    await project.run(['esbuild', ...words, '--format=esm', '--outfile=out/main.mjs']);
  }),
  nextRow('Turbopack', []),
  nextRow('webpack', ['--webpack']),
];
