import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { statSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { gzipSync } from 'node:zlib';
import { load, wasmUrl, type LoadOptions } from 'multihead';
import { createPool } from 'multihead/pool';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { everything } from '../src/api/multihead.ts';
import { createLoader } from '../src/load/loader.ts';
import { urlFinder } from '../src/load/source.ts';
import { expectWorks, freshLoad } from './builds.ts';

const wasmUrlOfBuild = new URL('../dist/multihead-simd128.wasm', import.meta.url);
const simd = 'simd128';

/** An empty module: the eight bytes with which every module starts. */
const emptyModule = new Uint8Array([0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00]);

describe('multihead/inline', () => {
  it('is all of the package, multihead/training, multihead/lab and multihead/pool, without files', async () => {
    const inline = await import('multihead/inline');
    const parts = [await import('multihead'), await import('multihead/lab'), await import('multihead/training'), await import('multihead/pool')];
    expect(Object.keys(inline).sort()).toEqual([...new Set(parts.flatMap(Object.keys))].sort());
    const read = vi.spyOn(process, 'getBuiltinModule');
    const mh = await inline.load();
    expect(read).not.toHaveBeenCalled();
    read.mockRestore();
    expectWorks(mh);
    expect(await inline.load()).toBe(mh);
    const { why, ...backend } = (await load({ simd })).backend;
    expect(mh.backend).toMatchObject(backend);
    expect(mh.backend.why).not.toBe(why);
  });

  it('refuses the relaxed build, but takes its file', async () => {
    const inline = await import('multihead/inline');
    await expect(inline.load({ simd: 'relaxed' })).rejects.toMatchObject({
      ...{ name: 'MultiheadError', code: 'E_LOAD', argument: 'simd' },
      message: expect.stringMatching(/contains only the simd128 build/) as string,
    });
    const wasm = new URL('../dist/multihead-relaxed.wasm', import.meta.url);
    const mh = await inline.load({ simd: 'relaxed', wasm });
    expect(mh.backend.simd).toBe('relaxed');
    expectWorks(mh);
  });

  it('says what it needs of an engine, and loads afterwards', async () => {
    const fresh = await freshLoad('no-decompression', 'inline.js');
    vi.stubGlobal('DecompressionStream', undefined);
    await expect(fresh()).rejects.toMatchObject({
      ...{ name: 'MultiheadError', code: 'E_LOAD' },
      message: expect.stringMatching(/needs DecompressionStream/) as string,
    });
    vi.unstubAllGlobals();
    expectWorks(await fresh());
  });
});

describe('load', () => {
  let server: Server;
  let origin: string;

  beforeAll(async () => {
    const wasm = await readFile(wasmUrlOfBuild);
    server = createServer((request, response) => {
      if (request.url === '/ok.wasm') response.end(wasm);
      else if (request.url === '/long.wasm') response.writeHead(200, { 'content-length': wasm.length }).end(wasm);
      else if (request.url === '/gzip.wasm') {
        const packed = gzipSync(wasm);
        response.writeHead(200, { 'content-encoding': 'gzip', 'content-length': packed.length }).end(packed);
      } else if (request.url === '/page') response.end('<!doctype html><title>Not the file</title>');
      else if (request.url === '/truncated.wasm') response.end(wasm.subarray(0, 1000));
      else if (request.url !== '/never.wasm') response.writeHead(404).end('no');
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  });
  afterAll(() => {
    server.closeAllConnections();
    server.close();
  });

  it('returns one shared instance to all callers', async () => {
    const signal = new AbortController().signal;
    const [a, b, c] = await Promise.all([load(), load({}), load({ signal })]);
    expect(a).toBe(b);
    expect(a).toBe(c);
    expect(await load({ simd })).not.toBe(a);
    expectWorks(a);
  });

  it.each<[string, unknown]>([
    ['an empty object', {}],
    ['null', null],
    ['text', 'abort'],
    ['half a signal', { aborted: false }],
  ])('refuses %s for a signal', async (_, signal) => {
    await expect(load({ simd, signal: signal as never })).rejects.toMatchObject({
      ...{ name: 'MultiheadError', code: 'E_OPTION', argument: 'signal' },
    });
  });

  it('refuses options that are not an object', async () => {
    for (const options of [null, 3, []]) {
      await expect(load(options as never)).rejects.toMatchObject({ code: 'E_OPTION' });
    }
  });

  it('refuses a module of the other build, of another version, and of another program', async () => {
    const bytes = new Uint8Array(await readFile(wasmUrlOfBuild));
    const other = new URL('../dist/multihead-relaxed.wasm', import.meta.url);
    await expect(load({ simd, wasm: other })).rejects.toMatchObject({
      code: 'E_LOAD',
      message: expect.stringMatching(/not multihead .*wire [0-9a-f]{8} relaxed/) as string,
    });
    // The file contains the section's text uncompressed.
    const text = new TextDecoder('latin1').decode(bytes);
    const at = text.indexOf(' wire ');
    expect(at).toBeGreaterThan(0);
    bytes[at + ' wire '.length] = 'x'.charCodeAt(0);
    await expect(load({ simd, wasm: bytes })).rejects.toMatchObject({
      code: 'E_LOAD',
      message: expect.stringMatching(/wire x[0-9a-f]{7} simd128/) as string,
    });
  });

  it('reports what it loaded', async () => {
    const { size } = statSync(wasmUrlOfBuild);
    const { backend } = await load({ simd });
    expect(backend).toEqual({
      simd,
      target: expect.stringMatching(/WASM/) as string,
      version: expect.stringMatching(/^\d+\.\d+\.\d+/) as string,
      wasmBytes: size,
      why: expect.any(String) as string,
    });
  });

  it('returns methods that work when destructured', async () => {
    const { tensor, memory } = await load({ simd });
    tensor([1]).dispose();
    expect(memory().live).toBe(0);
  });

  it.each<[string, () => Promise<LoadOptions['wasm']> | LoadOptions['wasm']]>([
    ['a URL', () => wasmUrlOfBuild],
    ['a file: URL in a string', () => wasmUrlOfBuild.href],
    ['a path', () => fileURLToPath(wasmUrlOfBuild)],
    ['an http address', () => `${origin}/ok.wasm`],
    ['a Response', () => fetch(`${origin}/ok.wasm`)],
    ['a Uint8Array', async () => new Uint8Array(await readFile(wasmUrlOfBuild))],
    ['an ArrayBuffer', async () => new Uint8Array(await readFile(wasmUrlOfBuild)).buffer],
    ['a WebAssembly.Module', async () => WebAssembly.compile(new Uint8Array(await readFile(wasmUrlOfBuild)))],
  ])('takes the .wasm from %s', async (kind, source) => {
    const mh = await load({ simd, wasm: await source() });
    expectWorks(mh);
    expect(mh.backend.wasmBytes > 0).toBe(kind !== 'a WebAssembly.Module');
  });

  it.each<[string, () => Promise<LoadOptions['wasm']> | LoadOptions['wasm'], RegExp]>([
    ['a status of 404', () => `${origin}/none.wasm`, /127\.0\.0\.1:\d+\/none\.wasm.*404/],
    ['a Response of 404', () => fetch(`${origin}/none.wasm`), /none\.wasm.*404/],
    ['a page of HTML', () => `${origin}/page`, /\/page.*not a WebAssembly file.*HTML/],
    ['half a file', () => `${origin}/truncated.wasm`, /truncated\.wasm/],
    ['a server that does not answer', () => 'http://127.0.0.1:9/x.wasm', /127\.0\.0\.1:9\/x\.wasm/],
    ['a path that does not exist', () => '/nowhere/multihead.wasm', /\/nowhere\/multihead\.wasm.*ENOENT/],
    ['a URL that does not exist', () => pathToFileURL('/nowhere/x.wasm'), /\/nowhere\/x\.wasm.*ENOENT/],
    ['bytes that are no module', () => new Uint8Array([1, 2, 3]), /bytes given.*3 bytes/],
    ['another module', () => emptyModule, /not multihead/],
    ['no bytes', () => new ArrayBuffer(0), /bytes given/],
  ])('refuses %s by name, and loads afterwards', async (_, source, message) => {
    const wasm = await source();
    await expect(load({ simd, wasm })).rejects.toMatchObject({
      name: 'MultiheadError',
      code: 'E_LOAD',
      argument: 'wasm',
      message: expect.stringMatching(message) as string,
    });
    expectWorks(await load());
  });

  it('takes a module of either build without `simd`', async () => {
    for (const build of ['simd128', 'relaxed'] as const) {
      const bytes = new Uint8Array(await readFile(new URL(`../dist/multihead-${build}.wasm`, import.meta.url)));
      for (const wasm of [await WebAssembly.compile(bytes), bytes]) {
        const mh = await load({ wasm });
        expect(mh.backend).toMatchObject({ simd: build, why: expect.stringMatching(/\w/) as string });
        expectWorks(mh);
      }
    }
    const core = new URL('../dist/multihead-core-simd128.wasm', import.meta.url);
    await expect(load({ wasm: core })).rejects.toMatchObject({ code: 'E_LOAD', message: expect.stringMatching(/core-simd128/) as string });
  });

  it('ends responses that it does not read: of the other build, with an error, and when it is aborted', async () => {
    const cancelled: string[] = [];
    /** A response that sends bytes without end. */
    const endless = (name: string, init: ResponseInit = {}): Response =>
      new Response(
        new ReadableStream({ pull: (controller) => controller.enqueue(new Uint8Array(10)), cancel: () => void cancelled.push(name) }),
        init,
      );
    const wasm = { relaxed: endless('other build'), simd128: new Response(new Uint8Array(await readFile(wasmUrlOfBuild))) };
    expectWorks(await load({ simd, wasm }));
    const same = new Response(new Uint8Array(await readFile(wasmUrlOfBuild)));
    expectWorks(await load({ simd, wasm: { relaxed: same, simd128: same } }));
    await expect(load({ simd, wasm: endless('status', { status: 500 }) })).rejects.toMatchObject({ code: 'E_LOAD' });
    const controller = new AbortController();
    const removed = vi.spyOn(controller.signal, 'removeEventListener');
    const aborted = load({ simd, wasm: endless('aborted'), signal: controller.signal, onProgress: () => controller.abort() });
    await expect(aborted).rejects.toMatchObject({ code: 'E_ABORTED' });
    await vi.waitFor(() => expect(cancelled).toEqual(['other build', 'status', 'aborted']));
    await vi.waitFor(() => expect(removed).toHaveBeenCalledTimes(2));
  });

  it('says what to do where the code has no address, as in Cloudflare Workers', async () => {
    const files = () => ({ simd128: () => new URL('./multihead-simd128.wasm', undefined), advice: 'no other advice' });
    const withoutAddress = createLoader(files, everything);
    await expect(withoutAddress()).rejects.toMatchObject({
      ...{ name: 'MultiheadError', code: 'E_LOAD', argument: 'wasm' },
      message: expect.stringMatching(
        /address of this code is unknown \(Invalid URL.*\)\. Give load\(\) the file or the compiled module as wasm; see "Where it runs"/,
      ) as string,
    });
    expectWorks(await withoutAddress({ wasm: wasmUrlOfBuild, simd }));
    expect(urlFinder((build) => new URL(`./${build}.wasm`, undefined).href)()).toBe(undefined);
  });

  const relaxedUrl = new URL('../dist/multihead-relaxed.wasm', import.meta.url);

  it('chooses from a file per build, and reads no other', async () => {
    const auto = await load();
    const both = { relaxed: relaxedUrl, simd128: wasmUrlOfBuild };
    expect((await load({ wasm: both })).backend).toEqual(auto.backend);
    expect((await load({ wasm: { ...both, relaxed: '/nowhere' }, simd })).backend.simd).toBe(simd);
    expectWorks(await load({ wasm: both, simd: 'relaxed' }));
    await expect(load({ wasm: { relaxed: wasmUrlOfBuild, simd128: '/nowhere' }, simd })).rejects.toMatchObject({
      ...{ code: 'E_LOAD', argument: 'wasm.simd128' },
      message: expect.stringMatching(/\/nowhere.*ENOENT/) as string,
    });
    await expect(load({ wasm: { relaxed: relaxedUrl, simd128: relaxedUrl }, simd })).rejects.toMatchObject({
      ...{ code: 'E_LOAD', argument: 'wasm.simd128' },
      message: expect.stringMatching(/wire [0-9a-f]{8} relaxed/) as string,
    });
  });

  it.each<[string, unknown, string]>([
    ['a number', { relaxed: 7, simd128: wasmUrlOfBuild }, 'wasm.relaxed'],
    ['null', { relaxed: wasmUrlOfBuild, simd128: null }, 'wasm.simd128'],
    ['an object', { relaxed: {}, simd128: wasmUrlOfBuild }, 'wasm.relaxed'],
    ['nothing', { relaxed: wasmUrlOfBuild }, 'wasm.simd128'],
    ['no build', {}, 'wasm.relaxed'],
    ['another build', { relaxed: wasmUrlOfBuild, simd128: wasmUrlOfBuild, avx: wasmUrlOfBuild }, 'avx'],
    ['a list', [wasmUrlOfBuild, wasmUrlOfBuild], 'wasm'],
  ])('refuses %s for a file per build, whichever is chosen', async (_, wasm, argument) => {
    for (const options of [{}, { simd }, { simd: 'relaxed' }]) {
      await expect(load({ ...options, wasm } as never)).rejects.toMatchObject({
        ...{ name: 'MultiheadError', code: 'E_OPTION', argument },
      });
    }
  });

  it('has an entry point for browsers, with the same files', async () => {
    const fresh = await freshLoad('for-browsers', 'index.js');
    expect((await fresh()).backend).toEqual((await load()).backend);
    expectWorks(await fresh({ simd }));
  });

  it('runs the build in its code where there are no files', async () => {
    const fresh = await freshLoad('no-files');
    const builtin = vi.spyOn(process, 'getBuiltinModule').mockReturnValue(undefined as never);
    const mh = await fresh();
    builtin.mockRestore();
    expect(mh.backend).toMatchObject({ simd, why: expect.stringMatching(/the code contains/) as string });
    expectWorks(mh);
  });

  it('says what to do if a bundler has left out the files', async () => {
    const file = () => `${origin}/none.wasm`;
    const without = createLoader(() => ({ relaxed: file, simd128: file, advice: 'Do this' }), everything);
    await expect(without()).rejects.toMatchObject({
      ...{ code: 'E_LOAD', argument: 'wasm' },
      message: expect.stringMatching(/none\.wasm: HTTP status 404 Not Found\. Do this$/) as string,
    });
  });

  it('loads again after a failure', async () => {
    const compile = vi.spyOn(WebAssembly, 'compile').mockRejectedValueOnce(new Error('on purpose'));
    const fresh = await freshLoad('failing-once');
    await expect(fresh()).rejects.toMatchObject({ code: 'E_LOAD' });
    expectWorks(await fresh());
    compile.mockRestore();
  });

  it('can be aborted before, during and after', async () => {
    const reason = new Error('changed my mind');
    const aborted = {
      name: 'MultiheadError',
      code: 'E_ABORTED',
      argument: 'signal',
      cause: reason,
    };
    await expect(load({ signal: AbortSignal.abort(reason) })).rejects.toMatchObject(aborted);

    const during = new AbortController();
    const loading = load({ simd, wasm: `${origin}/never.wasm`, signal: during.signal });
    during.abort(reason);
    await expect(loading).rejects.toMatchObject(aborted);

    const after = new AbortController();
    const mh = await load({ signal: after.signal });
    after.abort();
    expectWorks(mh);
  });

  it('continues for the other callers when one of them aborts', async () => {
    const fresh = await freshLoad('aborted-by-one');
    const controller = new AbortController();
    const one = fresh({ signal: controller.signal });
    const other = fresh();
    controller.abort();
    await expect(one).rejects.toMatchObject({ code: 'E_ABORTED' });
    expectWorks(await other);
  });

  it('reports the bytes loaded', async () => {
    const { size } = statSync(wasmUrlOfBuild);
    const progressOf = async (options: LoadOptions): Promise<[number, number | undefined][]> => {
      const calls: [number, number | undefined][] = [];
      expectWorks(await load({ simd, ...options, onProgress: (...call) => void calls.push(call) }));
      expect(calls.map(([loaded]) => loaded)).toEqual(calls.map(([loaded]) => loaded).sort((a, b) => a - b));
      expect(calls.at(-1)).toEqual([size, size]);
      return calls;
    };
    const stated = await progressOf({ wasm: `${origin}/long.wasm` });
    expect(stated.length).toBeGreaterThan(2);
    expect(stated.every(([, total]) => total === size)).toBe(true);
    const packed = await progressOf({ wasm: await fetch(`${origin}/gzip.wasm`) });
    expect(packed.slice(0, -1).every(([, total]) => total === undefined)).toBe(true);
    expect(await progressOf({})).toEqual([[size, size]]);
    expect(await progressOf({ wasm: new Uint8Array(await readFile(wasmUrlOfBuild)) })).toEqual([[size, size]]);

    const pooled = vi.fn();
    (await createPool({ workers: 1, simd, onProgress: pooled })).dispose();
    expect(pooled).toHaveBeenLastCalledWith(size, size);
  });

  it('reports to every caller of a shared instance, until its call ends', async () => {
    const fresh = await freshLoad('progress');
    const [one, other, late, aborted] = [vi.fn(), vi.fn(), vi.fn(), vi.fn()];
    const controller = new AbortController();
    const first = fresh({ onProgress: one });
    const second = fresh({ onProgress: other });
    const third = fresh({ onProgress: aborted, signal: controller.signal });
    const failing = fresh({
      onProgress: () => {
        throw new RangeError('on purpose');
      },
    });
    controller.abort();
    await expect(third).rejects.toMatchObject({ code: 'E_ABORTED' });
    await expect(failing).rejects.toThrow(RangeError);
    expect(await first).toBe(await second);
    expectWorks(await first);
    expect(one.mock.calls).toEqual(other.mock.calls);
    expect(one).toHaveBeenCalled();
    expect(aborted).not.toHaveBeenCalled();
    expect(await fresh({ onProgress: late })).toBe(await first);
    expect(late.mock.calls).toEqual([one.mock.lastCall]);
    await expect(
      fresh({
        onProgress: () => {
          throw new RangeError('on purpose');
        },
      }),
    ).rejects.toThrow(RangeError);
    expectWorks(await fresh());
  });

  it('checks the hash of the file, wherever it comes from', async () => {
    const file = await readFile(wasmUrlOfBuild);
    const sri = (bytes: Uint8Array, bits: number) => `sha${bits}-${createHash(`sha${bits}`).update(bytes).digest('base64')}`;
    const [right, wrong] = [file, file.subarray(1)].map((bytes) => [sri(bytes, 384), sri(bytes, 512)]) as [string[], string[]];
    const sources: LoadOptions['wasm'][] = [undefined, wasmUrlOfBuild, `${origin}/ok.wasm`, new Uint8Array(file)];
    for (const wasm of sources) {
      for (const integrity of [sri(file, 256), right[0], ` ${wrong[0]}\n${right[0]} `, `${sri(file, 512)} ${right[1]}`]) {
        expectWorks(await load({ simd, wasm, integrity }));
      }
      for (const integrity of [sri(file.subarray(1), 256), `${wrong[0]} ${sri(file.subarray(2), 384)}`]) {
        await expect(load({ simd, wasm, integrity })).rejects.toMatchObject({
          ...{ code: 'E_LOAD', argument: 'wasm' },
          message: expect.stringMatching(/its hash is sha(256|384)-.*integrity/) as string,
        });
      }
    }
    const both = sri(file, 384);
    expect(await load({ integrity: both, simd })).not.toBe(await load());
    const inline = await import('multihead/inline');
    expectWorks(await inline.load({ integrity: both }));
    await expect(inline.load({ integrity: sri(file.subarray(1), 384) })).rejects.toMatchObject({ code: 'E_LOAD' });
    const shared = new Uint8Array(new SharedArrayBuffer(8)) as never;
    await expect(load({ wasm: shared, integrity: both })).rejects.toMatchObject({ code: 'E_LOAD' });
    const module = await WebAssembly.compile(new Uint8Array(file));
    await expect(load({ simd, wasm: module, integrity: both })).rejects.toMatchObject({ code: 'E_OPTION', argument: 'integrity' });
    vi.stubGlobal('crypto', undefined);
    await expect(load({ simd, integrity: both })).rejects.toMatchObject({
      code: 'E_LOAD',
      message: expect.stringMatching(/integrity: .*subtle/) as string,
    });
    vi.unstubAllGlobals();
  });

  it.each<[string, unknown]>([
    ['integrity', ''],
    ['integrity', 'md5-abc'],
    ['integrity', 'sha384'],
    ['integrity', `sha384-${'A'.repeat(64)} nothing`],
    ['integrity', 'sha384-AAAA sha512-AAAA'],
    ['integrity', ['sha384-AAAA']],
    ['integrity', 7],
    ['onProgress', null],
    ['onProgress', {}],
  ])('refuses %s: %j', async (name, value) => {
    await expect(load({ [name]: value })).rejects.toMatchObject({ name: 'MultiheadError', code: 'E_OPTION', argument: name });
  });

  it('names the address of the file, for pages that preload it', async () => {
    expect(wasmUrl('simd128')).toBe(wasmUrlOfBuild.href);
    expect(wasmUrl('relaxed')).toBe(wasmUrlOfBuild.href.replace('simd128', 'relaxed'));
    expect(wasmUrl()).toBe(wasmUrl((await load()).backend.simd));
    const browser = (await import(new URL('../dist/index.js', import.meta.url).href)) as typeof import('multihead');
    expect([browser.wasmUrl(), browser.wasmUrl('relaxed')]).toEqual([wasmUrl(), wasmUrl('relaxed')]);
    const core = await import('multihead/core');
    expect(core.wasmUrl('simd128')).toBe(wasmUrlOfBuild.href.replace('simd128', 'core-simd128'));
    expect((await import('multihead/inline')).wasmUrl()).toBeUndefined();
    for (const wrong of ['avx', null, 1, {}]) {
      expect(() => wasmUrl(wrong as never)).toThrow(expect.objectContaining({ code: 'E_OPTION', argument: 'simd' }) as Error);
    }
  });

  it('refuses unknown options', async () => {
    await expect(load({ url: 'x' } as never)).rejects.toMatchObject({
      code: 'E_OPTION',
      argument: 'url',
    });
    await expect(load({ simd: 'avx' as never })).rejects.toMatchObject({
      code: 'E_OPTION',
      argument: 'simd',
    });
    await expect(load({ wasm: 7 as never })).rejects.toMatchObject({
      code: 'E_OPTION',
      argument: 'wasm',
    });
    await expect(load(null as never)).rejects.toMatchObject({ code: 'E_OPTION', argument: 'load' });
  });

  it('needs no class that Jest hides from tests in its jsdom', async () => {
    const script = `
      for (const name of ['TextDecoder', 'TextEncoder', 'structuredClone', 'fetch', 'Response', 'MessageChannel']) delete globalThis[name];
      const { load, readSafetensors, writeSafetensors } = await import('multihead');
      const { createPool } = await import('multihead/pool');
      const mh = await load();
      const x = { shape: [1, 1, 2, 2], data: Float32Array.of(1, 2, 3, 4) };
      const module = mh.multiHeadAttention({ embedDim: 2, numHeads: 1, bias: false, outProj: false });
      module.loadStateDict(readSafetensors(writeSafetensors({ in_proj_weight: { shape: [6, 2], data: new Float32Array(12) } })).stateDict);
      const pool = await createPool({ workers: 2, leastWork: 1 });
      const { out, operands } = await pool.attention(x, x, x, { causal: 'topLeft', transfer: true });
      console.log(out.data[0], operands.q.data[3], Object.keys(module.stateDict())[0]);
      try { mh.attention(x, x, x, { scale: NaN }); } catch (error) { console.log(error.code); }
      pool.dispose();`;
    const cwd = fileURLToPath(new URL('..', import.meta.url));
    const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', script], { cwd });
    expect(stdout).toBe('1 4 in_proj_weight\nE_OPTION\n');
  });

  it('importing the package has no effect', async () => {
    const fetched = vi.spyOn(globalThis, 'fetch');
    const compiled = vi.spyOn(WebAssembly, 'compile');
    const before = Reflect.ownKeys(globalThis);
    await freshLoad('import-only');
    expect(Reflect.ownKeys(globalThis)).toEqual(before);
    expect(fetched).not.toHaveBeenCalled();
    expect(compiled).not.toHaveBeenCalled();
    vi.restoreAllMocks();
  });
});
