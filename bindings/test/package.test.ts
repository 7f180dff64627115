// The package in the form that npm would publish, installed and used by another project.

import { execFile } from 'node:child_process';
import { copyFile, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { load } from 'multihead';
import { rolldown } from 'rolldown';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { partNames } from '../src/generated/parts.ts';

const run = promisify(execFile);
const root = dirname(dirname(fileURLToPath(import.meta.url)));
const bin = (name: string): string => join(root, '..', 'node_modules', '.bin', name);
const quietly: NodeJS.ProcessEnv = { ...process.env, NO_COLOR: '1', npm_config_offline: 'true' };

/** The .wasm files as the package exports them. */
const wasmFiles = ['', 'core-', 'models-', ...partNames.map((part) => `${part}-`)].flatMap((name) => [`${name}relaxed.wasm`, `${name}simd128.wasm`]);

interface PackedFile {
  path: string;
}

interface Bill {
  components: { name: string; version: string }[];
}

/** Modules that a program calls: see native/dev/packages/sources.mjs. */
interface Modules {
  load: string[];
  createPool?: string;
  openModel?: string;
}

interface Sources {
  FILES: Modules;
  INLINE: Modules;
  call(modules?: Modules): string;
  required(text: string): string;
}

/** Imports a module of `npm run try-packages`. */
async function inPackages<Module>(name: string): Promise<Module> {
  const { href } = new URL(`../../native/dev/packages/${name}`, import.meta.url);
  return (await import(/* @vite-ignore */ href)) as Module;
}

async function npm(folder: string, ...args: string[]): Promise<string> {
  return (await run('npm', args, { cwd: folder, env: quietly })).stdout;
}

describe('the packed package', { timeout: 120_000 }, () => {
  let folder: string;
  let tarball: string;
  let example: string;

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'multihead-package-'));
    const [packed] = JSON.parse(await npm(root, 'pack', '--json', '--pack-destination', folder)) as { filename: string }[];
    tarball = join(folder, packed?.filename ?? '');

    const readme = await readFile(join(root, 'README.md'), 'utf8');
    example = /```js\n([\s\S]*?)```/.exec(readme)?.[1] ?? '';
    await writeFile(join(folder, 'package.json'), '{ "private": true, "type": "module" }');
    await npm(folder, 'install', tarball);
  }, 120_000);
  afterAll(() => rm(folder, { recursive: true }));

  /** Compiles a strict project; fails if it or its library files have errors. */
  async function expectTypes(...args: string[]): Promise<void> {
    const checks = ['--strict', '--exactOptionalPropertyTypes', '--noUncheckedIndexedAccess', '--skipLibCheck', 'false'];
    const strict = [...checks, '--noEmit', '--target', 'es2022', '--module', 'nodenext', '--types', ''];
    await run(bin('tsc'), [...strict, ...args], { cwd: folder, env: quietly }).catch((error: { stdout: string }) => expect.fail(error.stdout));
  }

  it('holds exactly the files meant for it', async () => {
    const [{ files } = { files: [] }] = JSON.parse(await npm(root, 'pack', '--dry-run', '--json')) as {
      files: PackedFile[];
    }[];
    const paths = files.map(({ path }) => path);
    const declarations = paths.filter((path) => path.startsWith('dist/declarations/'));
    for (const path of declarations)
      expect(path).toMatch(/\/(entry|types)\/\w+\.d\.ts$|\/(errors|features|gpt2_config|lab|open|read|save|sparse_autoencoder|write|train)\.d\.ts$/);
    expect(declarations.length).toBeLessThan(46);
    const scripts = [
      ...[
        'index',
        'index_node',
        'core',
        'core_node',
        'inline',
        'pool',
        'pool_node',
        'pool_worker',
        'training',
        'lab',
        'models',
        'models_node',
        'models_worker',
        'command',
        'benchmarks',
      ],
      ...['index', 'core', 'pool', 'models'].map((name) => `${name}_workerd`),
      ...[
        ...[
          'analyses',
          'core_analyses',
          'gpu_analyses',
          'worker_analyses',
          'embed',
          'generator',
          'gguf',
          'hub',
          'image',
          'model_generation',
          'model_opener',
          'model_team',
          'sparse_autoencoder',
          'trainer',
        ],
        ...['core_glue', 'experiment', 'features', 'gpu', 'gpu_device', 'model_gpu', 'multihead', 'pool_creator', 'safetensors', 'shared'],
        ...['step_trainer', 'unpack', 'workers'],
      ],
    ];
    const expected = [
      ...['CHANGELOG.md', 'LICENSE', 'README.md', 'package.json', 'dist/sbom.cdx.json'],
      ...scripts.map((name) => `dist/${name}.js`),
      ...['', 'core_', 'models_', ...partNames.map((part) => `${part}_`)].map((part) => `dist/${part}inline_wasm.js`),
      ...['dist/pool_worker_text.js', 'dist/models_worker_text.js'],
      ...wasmFiles.map((name) => `dist/multihead-${name}`),
      ...declarations,
    ];
    expect(paths.sort()).toEqual(expected.sort());
  });

  it('has the version that the code states, and no dependency', async () => {
    const manifest = JSON.parse(await readFile(join(root, 'package.json'), 'utf8')) as Record<string, unknown>;
    expect((await load()).backend.version).toBe(manifest['version']);
    expect(manifest).not.toHaveProperty('dependencies');
    expect(manifest['sideEffects']).toBe(false);
  });

  it('is the same to the byte when it is built and packed again', { timeout: 120_000 }, async () => {
    const again = join(folder, 'again');
    await run(process.execPath, ['build.mjs', join(again, 'dist')], { cwd: root, env: quietly });
    for (const name of ['package.json', 'README.md', 'CHANGELOG.md', 'LICENSE']) {
      await copyFile(join(root, name), join(again, name));
    }
    const [packed] = JSON.parse(await npm(again, 'pack', '--json')) as { filename: string }[];
    const [first, second] = await Promise.all([tarball, join(again, packed?.filename ?? '')].map((path) => readFile(path)));
    expect(first && second?.equals(first)).toBe(true);
  });

  it('prints a few lines for an uncaught error in Node, the sentence among them, also into a pipe', async () => {
    for (const module of ['multihead', 'multihead/core', 'multihead/inline']) {
      const script = `import { load } from '${module}';
        const mh = await load();
        mh.createCache({ numKvHeads: 1, headDim: 4, capacity: 4, layout: 'ring', pageSize: 3 });`;
      const { stderr } = await run(process.execPath, ['--input-type=module', '-e', script], { cwd: folder }).catch(
        (error: { stderr: string }) => error,
      );
      expect(stderr, module).toMatch(/^MultiheadError: pageSize: expected /m);
      expect(stderr.length, module).toBeLessThan(5000);
    }
  });

  it('lists what is linked into it', async () => {
    const { components } = JSON.parse(await readFile(join(root, 'dist', 'sbom.cdx.json'), 'utf8')) as Bill;
    const versions = Object.fromEntries(components.map(({ name, version }) => [name, version]));
    expect(versions).toEqual({
      emscripten: expect.stringMatching(/^\d+\.\d+\.\d+$/) as string,
      highway: expect.stringMatching(/^\d+\.\d+\.\d+$/) as string,
    });
  });

  it('uses neither eval nor new Function, and its glue nothing of Node', async () => {
    for (const name of await readdir(join(root, 'dist'), { recursive: true })) {
      if (!name.endsWith('.js')) continue;
      const text = await readFile(join(root, 'dist', name), 'utf8');
      expect(text, name).not.toMatch(/\beval\s*\(|new Function\b/);
      // Bundlers for browsers would react to these words in the glue with a polyfill or an extra file.
      if (/^(multihead|core_glue)\.js$/.test(name)) expect(text, name).not.toMatch(/\bprocess\b|import\.meta/);
    }
  });

  it('lets bundlers leave out what is not imported', async () => {
    const bundled = async (name: string) => {
      const entry = join(folder, `${name}.mjs`);
      await writeFile(entry, `import { ${name} } from 'multihead';\nconsole.log(${name});\n`);
      const bundle = await rolldown({ input: entry, platform: 'browser', logLevel: 'silent' });
      const { output } = await bundle.generate({ format: 'esm', minify: true });
      await bundle.close();
      return output[0].code.length;
    };
    // The script that chooses the build before the page has loaded needs nothing else of the package.
    expect(await bundled('preferredBuild')).toBeLessThan(4_000);
    expect(await bundled('readSafetensors')).toBeLessThan(19_000);
  });

  it('passes publint and attw', async () => {
    await run(bin('publint'), [root, '--strict'], { env: quietly });
    // Excludes the .wasm files, because each bundler decides how they are imported and typed.
    const excluded = ['--exclude-entrypoints', ...wasmFiles];
    const attw = (...args: string[]) => run(bin('attw'), [tarball, ...excluded, ...args], { env: quietly, maxBuffer: 2 ** 26 });
    await attw('--profile', 'esm-only');
    // moduleResolution: node of TypeScript 5 reads no exports, and then finds the types by typesVersions.
    const { stdout } = await attw('--profile', 'strict', '--format', 'json', '--ignore-rules', 'cjs-resolves-to-esm').catch(
      (error: { stdout: string }) => error,
    );
    const { analysis } = JSON.parse(stdout) as {
      analysis: { entrypoints: Record<string, { resolutions: { node10: { resolution?: { fileName: string } } } }> };
    };
    const entries = Object.keys(analysis.entrypoints).filter((entry) => entry !== './package.json');
    expect(entries).toContain('./models');
    for (const entry of entries) expect(analysis.entrypoints[entry]?.resolutions.node10.resolution?.fileName, entry).toMatch(/\.d\.ts$/);
  });

  it("runs the README's example of ten lines in Node", async () => {
    expect(example.trimEnd().split('\n').length).toBeLessThanOrEqual(10);
    await writeFile(join(folder, 'example.js'), example);
    const { stdout, stderr } = await run(process.execPath, ['example.js'], { cwd: folder });
    expect(stdout).toMatch(/\S/);
    expect(stderr).toBe('');
  });

  it('has types that need no DOM library and no types of Node', async () => {
    const types = `
      import { load, type LoadOptions, type WasmSource } from 'multihead';
      import { createExperiment } from 'multihead/lab';
      import { train } from 'multihead/training';
      import { load as loadInline } from 'multihead/inline';
      import { createPool } from 'multihead/pool';
      const source: WasmSource = new Uint8Array(8);
      const options: LoadOptions = { wasm: { relaxed: 'a.wasm', simd128: source }, simd: 'auto' };
      // @ts-expect-error not a file
      await load({ wasm: 7 });
      const mh = await loadInline(options);
      using x = mh.tensor(new Float32Array(4), [1, 1, 2, 2], { dtype: undefined });
      const { out } = mh.attention(x, x, x);
      export const shape: readonly number[] = out.shape;
      for await (const { step } of train({ experiment: createExperiment(mh) })) shape.at(step);
      using pool = await createPool({ workers: 2, leastWork: 1e6 });
      export const { data }: { data: Float32Array } = (await pool.attention(x, x, x)).out;
      const own = { signal: undefined };
      const model = await pool.transformer({ embedDim: 4, numHeads: 1, numLayers: 1, vocabSize: 4 }, own);
      await model.initialize({ seed: 1, ...own });
      const cache = await model.createCache({ capacity: 4 }, own);
      await cache.truncate(await cache.length(own), own);
      const trainer = await pool.trainer(model, { seed: 1, ...own });
      await trainer.restore(await trainer.checkpoint(own), own);
      // @ts-expect-error not a signal
      await trainer.update({ signal: null });`;
    await writeFile(join(folder, 'bare.ts'), types);
    await expectTypes('--lib', 'es2022', 'bare.ts');
    // If the platform's type exists, declarations use it.
    const dom = `
      import { load } from 'multihead';
      const { signal } = new AbortController();
      await load({ wasm: new URL('https://example.org/x.wasm'), signal });
      await load({ wasm: { relaxed: fetch('x.wasm').then(() => ''), simd128: await fetch('y.wasm') } });
      // @ts-expect-error not a signal
      await load({ signal: { aborted: false } });`;
    await writeFile(join(folder, 'dom.ts'), dom);
    await expectTypes('--lib', 'es2022,dom', 'dom.ts');
    const half = `
      import { load, writeSafetensors, type Tensor } from 'multihead';
      const mh = await load();
      const data = new Float16Array(4);
      export const tensor: Tensor<'f16'> = mh.tensor(data, [2, 2]);
      export const again: Tensor<'f16'> = mh.tensor(data, [2, 2], { dtype: 'f16' });
      const x = { shape: [1, 1, 2, 2], data };
      mh.attention(x, x, { ...x, dtype: 'f16' }).out.dispose();
      writeSafetensors({ x });
      mh.multiHeadAttention({ embedDim: 2, numHeads: 1 }).loadStateDict({ x });
      // @ts-expect-error products of matrices are f32
      mh.linear(x, x);
      // @ts-expect-error not bf16
      mh.tensor(data, [4], { dtype: 'bf16' });`;
    await writeFile(join(folder, 'half.ts'), half);
    await expectTypes('--lib', 'es2022,esnext.float16', 'half.ts');
  });

  it('has types for every way in which TypeScript finds modules', async () => {
    const all = ['multihead', 'multihead/core', 'multihead/inline', 'multihead/models', 'multihead/pool', 'multihead/training', 'multihead/lab'];
    await writeFile(
      join(folder, 'modes.ts'),
      all.map((entry, index) => `import * as e${index} from '${entry}'; export const o${index}: object = e${index};`).join('\n'),
    );
    const modes = [
      ['node16', 'node16'],
      ['nodenext', 'nodenext'],
      ['esnext', 'bundler'],
    ] as const;
    for (const [module, resolution] of modes) {
      await expectTypes('--lib', 'es2022', '--module', module, '--moduleResolution', resolution, 'modes.ts');
    }
  });

  it('runs in Node by import and by require(), and as a bundle that was moved', async () => {
    const { FILES, INLINE, call, required } = await inPackages<Sources>('sources.mjs');
    const ran = async (file: string, cwd = folder) => (await run(process.execPath, [file], { cwd })).stdout;
    const calling = '\ncall().then(console.log);';
    await writeFile(join(folder, 'import.mjs'), call() + calling);
    await writeFile(join(folder, 'require.cjs'), required(call()) + calling);
    expect(await ran('import.mjs')).toMatch(/^ok (relaxed|simd128)\n$/);
    expect(await ran('require.cjs')).toMatch(/^ok (relaxed|simd128)\n$/);

    // A bundle without the package's files next to it contains the simd128 build and the script of the workers.
    const alone = await mkdtemp(join(tmpdir(), 'multihead-alone-'));
    for (const [modules, platform] of [
      [FILES, 'node'],
      [INLINE, 'browser'],
    ] as const) {
      await writeFile(join(folder, 'entry.mjs'), call(modules) + calling);
      const bundle = await rolldown({ input: join(folder, 'entry.mjs'), platform, logLevel: 'silent' });
      await bundle.write({ dir: join(alone, platform), entryFileNames: 'main.mjs', chunkFileNames: '[name].mjs' });
      await bundle.close();
      if (platform === 'browser') expect(await readdir(join(alone, platform))).toEqual(['main.mjs']);
      expect(await ran(join(alone, platform, 'main.mjs'), alone), platform).toBe('ok simd128\n');
    }
    await rm(alone, { recursive: true });
  });

  it('states in its README what every environment needs that it is tried in', async () => {
    const { ROWS } = await inPackages<{ ROWS: { name: string; needs?: string }[] }>('rows.mjs');
    const readme = await readFile(join(root, 'README.md'), 'utf8');
    const stated = readme.split('\n').filter((line) => line.startsWith('| '));
    const missing = ROWS.map(({ name, needs = 'nothing' }) => `| ${name} | ${needs} |`).filter((row) => !stated.includes(row));
    expect(missing).toEqual([]);
  });

  it('has a command that npx finds, and that needs no other package for token ids', async () => {
    const npx = (...args: string[]) => run('npx', ['--offline', 'multihead', ...args], { cwd: folder, env: quietly });
    const model = join(root, '..', 'tests', 'conformance', 'models', 'gpt2');
    const { version } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8')) as { version: string };
    expect((await npx('--version')).stdout).toBe(`${version}\n`);
    expect((await npx('run', model, '--ids', '5,6,7', '--max-new-tokens', '4')).stdout).toMatch(/^\d+( \d+){3}\n$/);
    await copyFile(join(model, 'config.json'), join(folder, 'config.json'));
    await copyFile(join(model, 'model.safetensors'), join(folder, 'model.safetensors'));
    await writeFile(join(folder, 'tokenizer.json'), '{}');
    const failed = await npx('run', '.', 'Once upon').catch((error: { code: number; stdout: string; stderr: string }) => error);
    expect(failed).toMatchObject({ code: 2, stdout: '' });
    expect(failed.stderr).toBe(
      'text needs the package @huggingface/tokenizers (npm install @huggingface/tokenizers), got none; token ids work without a tokenizer\n',
    );
    await writeFile(join(folder, 'tokenizer_config.json'), '{"chat_template": "a"}');
    const silent = await npx('run', '.', 'Once upon', '--chat').catch((error: { stderr: string }) => error);
    expect(silent.stderr).toBe('messages need the package @huggingface/jinja (npm install @huggingface/jinja), got none; a text works without it\n');
  });

  it('can be imported without WebAssembly; load() then reports that it is missing', async () => {
    const script = `
      delete globalThis.WebAssembly;
      const { load } = await import('multihead');
      await load().catch((error) => console.log(error.code, error.message));`;
    const { stdout } = await run(process.execPath, ['--input-type=module', '-e', script], {
      cwd: folder,
    });
    expect(stdout).toMatch(/^E_LOAD WebAssembly SIMD is missing/);
  });

  it('is bundled by Vite with both .wasm files and no warning except a known one', async () => {
    const site = join(folder, 'site');
    await mkdir(site);
    await writeFile(join(site, 'index.html'), '<script type="module" src="./main.js"></script>');
    await writeFile(join(site, 'main.js'), example);
    // In a separate process: under Vitest's NODE_ENV, Vite prints fewer warnings.
    const { NODE_ENV: _, ...env } = quietly;
    const { stderr } = await run(bin('vite'), ['build', '--logLevel', 'warn'], { cwd: site, env });
    expect(stderr).toBe('');
    // The default format, iife, does not allow import() in it.
    await mkdir(join(folder, 'worker-site'));
    // An iife cannot have the top-level await of the example.
    const worker = "import { load } from 'multihead'; load().then((mh) => postMessage(mh.backend.simd));";
    await writeFile(join(folder, 'worker-site', 'worker.js'), worker);
    const page = "new Worker(new URL('./worker.js', import.meta.url), { type: 'module' });";
    await writeFile(join(folder, 'worker-site', 'main.js'), page);
    await copyFile(join(site, 'index.html'), join(folder, 'worker-site', 'index.html'));
    await run(bin('vite'), ['build', '--logLevel', 'warn'], { cwd: join(folder, 'worker-site'), env });
    expect((await readdir(join(folder, 'worker-site', 'dist', 'assets'))).filter((name) => name.endsWith('.wasm'))).toHaveLength(2);

    const assets = await readdir(join(site, 'dist', 'assets'));
    const wasm = assets.filter((name) => name.endsWith('.wasm')).map((name) => name.split('-')[1]);
    expect(wasm.sort()).toEqual(['relaxed', 'simd128']);
  });

  it('states in its README the sizes of all entry points', async () => {
    const { href } = new URL('../sizes.mjs', import.meta.url);
    type Sizes = Record<string, Record<'brotli' | 'gzip', number>>;
    const { sizes } = (await import(/* @vite-ignore */ href)) as { sizes(): Promise<Record<string, Sizes>> };
    const all = await sizes();
    const kilobytes = (parts: Sizes, encoding: 'brotli' | 'gzip') => Object.values(parts).reduce((sum, size) => sum + size[encoding], 0) / 1000;
    // The README has the sizes of one release of Emscripten, rounded; others differ by some percent.
    const isAbout = (stated: string | undefined, actual: number, what: string) =>
      expect(Math.abs(Number(stated) - actual), `${what}: ${actual.toFixed(1)} kB, stated ${stated}`).toBeLessThan(Math.max(0.6, 0.08 * actual));
    const readme = await readFile(join(root, 'README.md'), 'utf8');
    for (const [name, parts] of Object.entries(all)) {
      const [, brotli, gzip] = new RegExp(`^\\| \`${name}\`.* \\| (\\d+) kB \\| (\\d+) kB \\|$`, 'm').exec(readme) ?? [];
      isAbout(brotli, kilobytes(parts, 'brotli'), `${name}, Brotli`);
      isAbout(gzip, kilobytes(parts, 'gzip'), `${name}, gzip`);
    }
    // What only some models need is loaded with them.
    expect(kilobytes(all['multihead/models'] as Sizes, 'brotli')).toBeLessThan(160);
    const { script, wasm } = all['multihead'] as { script: Sizes[string]; wasm: Sizes[string] };
    for (const file of ['README.md', '../README.md']) {
      const text = (await readFile(join(root, file), 'utf8')).replaceAll(/\s+/g, ' ');
      isAbout(/about (\d+) kB in Brotli/i.exec(text)?.[1], (script.brotli + wasm.brotli) / 1000, `${file}, multihead`);
      isAbout(/(\d+) kB in gzip/.exec(text)?.[1], (script.gzip + wasm.gzip) / 1000, `${file}, multihead in gzip`);
      isAbout(/(\d+) kB of WebAssembly/.exec(text)?.[1], wasm.brotli / 1000, `${file}, WebAssembly`);
      isAbout(/(\d+) kB of minified JavaScript/.exec(text)?.[1], script.brotli / 1000, `${file}, JavaScript`);
    }
  });
});
