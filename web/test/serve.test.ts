import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { contentSecurityPolicy, serve, type Running } from '../serve.mjs';

let folder: string;
let running: Running;

/** Sends the path unchanged; fetch() would normalise it. */
function get(
  path: string,
  method = 'GET',
): Promise<{ status: number; headers: Record<string, unknown>; body: string }> {
  return new Promise((done, fail) => {
    const call = request({ host: '127.0.0.1', port: running.port, path, method }, (response) => {
      let body = '';
      response.setEncoding('utf8');
      response.on('data', (chunk: string) => (body += chunk));
      response.on('end', () => done({ status: response.statusCode ?? 0, headers: response.headers, body }));
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
  await symlink(join(folder, 'secret.txt'), join(folder, 'site', 'link.txt'));
  running = await serve({ root: join(folder, 'site'), port: 0 });
});

afterAll(async () => {
  await running.close();
  await rm(folder, { recursive: true });
});

describe('serve', () => {
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

  it('takes the next port if one is in use', async () => {
    const second = await serve({ root: join(folder, 'site'), port: running.port });
    expect(second.port).toBeGreaterThan(running.port);
    await second.close();
  });

  it('says what to do if the page is not built', async () => {
    await expect(serve({ root: join(folder, 'nowhere'), port: 0 })).rejects.toThrow(/build the page first/);
  });
});
