import { mkdir, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises';
import { request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { brotliCompressSync, brotliDecompressSync, constants, gunzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { compressFolder } from '../encoded.mjs';
import { contentSecurityPolicy, policyInPage, serve } from '../serve.mjs';

type Running = Awaited<ReturnType<typeof serve>>;

let folder: string;
let running: Running;

const script = 'const words = ["the", "cat"];\n'.repeat(100);

/** Sends path and headers unchanged; fetch() would normalize the path, and decompress the answer. */
function get(
  path: string,
  method = 'GET',
  headers: Record<string, string> = {},
): Promise<{ status: number; headers: Record<string, unknown>; body: string; bytes: Buffer }> {
  return new Promise((done, fail) => {
    const call = request({ host: '127.0.0.1', port: running.port, path, method, headers }, (response) => {
      const parts: Buffer[] = [];
      response.on('data', (part: Buffer) => parts.push(part));
      response.on('end', () => {
        const bytes = Buffer.concat(parts);
        done({ status: response.statusCode ?? 0, headers: response.headers, body: bytes.toString(), bytes });
      });
    });
    call.on('error', fail);
    call.end();
  });
}

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'multihead-serve-'));
  await mkdir(join(folder, 'site', 'assets'), { recursive: true });
  await writeFile(join(folder, 'secret.txt'), 'secret');
  await writeFile(join(folder, 'site', 'index.html'), '<title>hello</title>');
  await writeFile(join(folder, 'site', 'assets', 'core.wasm'), 'wasm');
  await writeFile(join(folder, 'site', 'assets', 'main.js'), script);
  await writeFile(join(folder, 'site', 'card.png'), script);
  await symlink(join(folder, 'secret.txt'), join(folder, 'site', 'link.txt'));
  running = await serve({ root: join(folder, 'site'), port: 0 });
});

afterAll(async () => {
  await running.close();
  await rm(folder, { recursive: true });
});

describe('serve', () => {
  it('lets other pages show a scene alone, and nothing else', async () => {
    for (const path of ['/?scene=split&embed=1', '/index.html?embed=1&scene=all']) {
      const { headers } = await get(path);
      expect(headers['content-security-policy'], path).toBe(policyInPage);
      expect(headers['cross-origin-resource-policy']).toBe('cross-origin');
    }
    for (const path of ['/?scene=split', '/?embed=1', '/?scene=split&embed=0', '/?embed', '/?a?embed=1', '//?embed=2', '/missing?embed=1']) {
      expect((await get(path)).headers['content-security-policy'], path).toBe(contentSecurityPolicy);
    }
  });

  it('serves the page with its policies', async () => {
    const { status, headers, body } = await get('/');
    expect([status, body]).toEqual([200, '<title>hello</title>']);
    expect(headers).toMatchObject({
      'content-type': 'text/html; charset=utf-8',
      'content-security-policy': contentSecurityPolicy,
      'cross-origin-opener-policy': 'same-origin',
      'cross-origin-embedder-policy': 'require-corp',
      'cache-control': 'no-cache',
    });
  });

  it('forbids frames by others, which only the header can, and what the page can forbid itself', async () => {
    expect(contentSecurityPolicy).toBe(`${policyInPage}; frame-ancestors 'none'`);
    for (const part of ["object-src 'none'", "base-uri 'none'", "require-trusted-types-for 'script'", 'trusted-types multihead']) {
      expect(policyInPage.split('; ')).toContain(part);
    }
  });

  it('sends the policy with what it governs: documents and workers', async () => {
    await writeFile(join(folder, 'site', 'assets', 'attention_worker-1.js'), script);
    const policyOf = async (path: string) => (await get(path)).headers['content-security-policy'];
    expect(await policyOf('/assets/attention_worker-1.js')).toBe(contentSecurityPolicy);
    expect(await policyOf('/assets/main.js')).toBeUndefined();
    const { headers: ofModule } = await get('/assets/main.js'); // which a worker may import
    expect(ofModule['cross-origin-embedder-policy']).toBe('require-corp');
    expect(await policyOf('/assets/core.wasm')).toBeUndefined();
    expect(await policyOf('/missing')).toBe(contentSecurityPolicy);
    const { headers } = await get('/missing'); // the text is a document for who opens the address
    expect(headers['cross-origin-opener-policy']).toBe('same-origin');
  });

  it('serves .wasm with its type, and hashed names as cacheable', async () => {
    const { headers } = await get('/assets/core.wasm?x=1');
    expect(headers['content-type']).toBe('application/wasm');
    expect(headers['cache-control']).toMatch(/immutable/);
  });

  it.each([
    '/../secret.txt',
    '/%2e%2e/secret.txt',
    '/..%2fsecret.txt',
    '/assets/..%2f..%2fsecret.txt',
    '/%2e%2e%5csecret.txt',
    '/link.txt',
    '/assets',
    '/index.html%00.txt',
    '/%E0%A4%A',
    '//secret.txt',
    '/missing.js',
  ])('serves nothing at %s', async (path) => {
    const { status, body } = await get(path);
    expect([status, body]).toEqual([404, 'Not found\n']);
  });

  it('answers HEAD without a body, and refuses other methods', async () => {
    expect(await get('/', 'HEAD')).toMatchObject({ status: 200, body: '' });
    expect(await get('/', 'POST')).toMatchObject({ status: 405, headers: { allow: 'GET, HEAD' } });
  });

  it.each([
    ['gzip, deflate, br', 'br'],
    ['gzip', 'gzip'],
    ['br;q=0, GZIP;q=0.5', 'gzip'],
    ['*', 'br'],
    ['identity', undefined],
    ['br;q=0', undefined],
    ['', undefined],
  ])('for Accept-Encoding "%s" it sends %s', async (accepted, encoding) => {
    const { headers, bytes } = await get('/assets/main.js', 'GET', { 'accept-encoding': accepted });
    expect(headers['content-encoding']).toBe(encoding);
    expect(headers['vary']).toBe('Accept-Encoding');
    expect(headers['content-length']).toBe(String(bytes.length));
    const unpack = { br: brotliDecompressSync, gzip: gunzipSync }[encoding ?? ''] ?? ((plain: Buffer) => plain);
    expect(unpack(bytes).toString()).toBe(script);
    if (encoding) expect(bytes.length).toBeLessThan(script.length / 4);
  });

  it('sends the compressed file of the build while it holds the bytes of the file', async () => {
    const built = join(folder, 'site', 'assets', 'built.js');
    await writeFile(built, script);
    const packed = brotliCompressSync(script, { params: { [constants.BROTLI_PARAM_QUALITY]: 1 } });
    await writeFile(`${built}.br`, packed);
    const accepted = { 'accept-encoding': 'br' };
    expect((await get('/assets/built.js', 'GET', accepted)).bytes).toEqual(packed);
    await writeFile(built, `${script}more`);
    expect(brotliDecompressSync((await get('/assets/built.js', 'GET', accepted)).bytes).toString()).toBe(`${script}more`);
    await writeFile(built, 'less');
    await writeFile(`${built}.br`, 'no Brotli');
    expect(brotliDecompressSync((await get('/assets/built.js', 'GET', accepted)).bytes).toString()).toBe('less');
  });

  it('compresses neither pictures nor answers to range requests', async () => {
    const accepted = { 'accept-encoding': 'br' };
    const picture = await get('/card.png', 'GET', accepted);
    expect([picture.headers['content-encoding'], picture.headers['vary']]).toEqual([undefined, undefined]);
    const range = await get('/assets/main.js', 'GET', { ...accepted, range: 'bytes=0-9' });
    expect([range.status, range.headers['content-encoding'], range.body]).toEqual([200, undefined, script]);
  });

  it('lets the guides have styles and scripts of their own, and nothing else', async () => {
    await mkdir(join(folder, 'site', 'docs'));
    await writeFile(join(folder, 'site', 'docs', 'index.html'), 'guide');
    await writeFile(join(folder, 'site', 'docs.html'), 'page');
    expect((await get('/docs/index.html')).headers['content-security-policy']).toMatch(
      /'unsafe-inline'.*; object-src 'none'; base-uri 'none'; frame-ancestors 'self'$/,
    );
    expect((await get('/docs.html')).headers['content-security-policy']).toBe(contentSecurityPolicy);
  });

  it('answers 304 while the content is the same, with a tag for each encoding', async () => {
    const file = join(folder, 'site', 'changing.html');
    await writeFile(file, 'one');
    const first = await get('/changing.html');
    const etag = String(first.headers['etag']);
    const again = { 'if-none-match': `"other", W/${etag}` };
    expect(await get('/changing.html', 'GET', again)).toMatchObject({ status: 304, body: '' });
    const packed = await get('/changing.html', 'GET', { ...again, 'accept-encoding': 'br' });
    expect([packed.status, packed.headers['etag'] === etag]).toEqual([200, false]);
    await writeFile(file, 'three');
    expect(await get('/changing.html', 'GET', again)).toMatchObject({ status: 200, body: 'three' });
  });

  it('takes the next port if one is in use', async () => {
    const second = await serve({ root: join(folder, 'site'), port: running.port });
    expect(second.port).toBeGreaterThan(running.port);
    await second.close();
  });

  it('says what to do if the page is not built', async () => {
    await expect(serve({ root: join(folder, 'nowhere'), port: 0 })).rejects.toThrow(/build the page first/);
  });
});

describe('compressFolder', () => {
  it('writes compressed files beside those that become smaller, in folders below too', async () => {
    const built = join(folder, 'built');
    await mkdir(join(built, 'docs'), { recursive: true });
    for (const name of ['main.js', 'card.png', 'docs/index.html']) await writeFile(join(built, name), script);
    await writeFile(join(built, 'tiny.js'), 'a');
    await compressFolder(built);
    const names = (await readdir(built, { recursive: true })).sort();
    const packed = ['docs/index.html.br', 'docs/index.html.gz', 'main.js.br', 'main.js.gz'];
    expect(names).toEqual(['card.png', 'docs', 'docs/index.html', 'main.js', 'tiny.js', ...packed].sort());
  });
});
