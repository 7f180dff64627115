// Models by their names, from a server that answers as the hub does.

import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { readSafetensors, writeSafetensors } from 'multihead';
import { type FetchProgress, openModel, type OpenModelOptions } from 'multihead/models';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { isAbsent, type OpenFile } from '../src/models/folder.ts';
import { findFolder } from '../src/models/find_folder.ts';
import { rejectionOf } from './builds.ts';
import { goldens } from './tokenizer_files.ts';

const golden = join(goldens, 'gpt2');
const config = readFileSync(join(golden, 'config.json'));
const weights = readFileSync(join(golden, 'model.safetensors'));
/** More than one piece, of which the model needs the begin. */
const large = Buffer.from(
  writeSafetensors({
    ...readSafetensors(weights).tensors,
    zzz: { dtype: 'F32', shape: [3 * 2 ** 20], data: new Float32Array(3 * 2 ** 20) },
  } as never),
);
const piece = 2 ** 23;

const commits = ['a'.repeat(40), 'b'.repeat(40)] as const;
let commit: string = commits[0];
let files: Record<string, Buffer> = {};
/** Requests as "GET main/config.json", and what stands in their Range. */
let requests: string[] = [];
let isDown = false;
let etag = '"1"';
/** The body of safetensors ends here, as of a connection that breaks. */
let breaksAt = Infinity;
/** Called before a body is sent. */
let before: (name: string) => Promise<void> = async () => {};

async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const [, org, repo, kind, revision = '', ...path] = decodeURIComponent(request.url ?? '').split('/');
  const name = path.join('/');
  if (isDown) return void response.writeHead(503).end();
  if (org === 'storage') {
    // Storage on another path, with ranges.
    await before(request.url as string);
    const bytes = files[decodeURIComponent(request.url as string).slice('/storage/'.length)] as Buffer;
    const [, from] = /^bytes=(\d+)-$/.exec(request.headers.range ?? '') ?? [];
    const body = bytes.subarray(Number(from ?? 0));
    const range = from === undefined ? {} : { 'content-range': `bytes ${from}-${bytes.length - 1}/${bytes.length}` };
    response.writeHead(from === undefined ? 200 : 206, { etag, 'content-length': body.length, ...range });
    response.write(body.subarray(0, breaksAt), () => (breaksAt < body.length ? response.destroy() : response.end()));
    return;
  }
  if (org === 'api') {
    const bytes = files[name.split('/').slice(1).join('/')] as Buffer;
    return void response
      .writeHead(200, { etag: '"small"', 'x-repo-commit': commit, 'content-length': bytes.length })
      .end(request.method === 'HEAD' ? '' : bytes);
  }
  requests.push(`${request.method} ${revision}/${name}${request.headers.range ? ` ${request.headers.range}` : ''}`);
  if (org !== 'org' || repo !== 'tiny' || kind !== 'resolve')
    return void response.writeHead(401, { 'x-error-code': 'RepoNotFound' }).end('Invalid username or password.');
  const common = { 'x-repo-commit': commit };
  if (files[name] === undefined) return void response.writeHead(404, { ...common, 'x-error-code': 'EntryNotFound' }).end('Entry not found');
  if (name.endsWith('.safetensors')) {
    const linked = { 'x-linked-etag': etag, 'x-linked-size': files[name].length };
    return void response.writeHead(302, { ...common, ...linked, location: `/storage/${name}` }).end();
  }
  response.writeHead(307, { ...common, location: `/api/resolve-cache/models/org/tiny/${name}` }).end();
}
const server = createServer((request, response) => void answer(request, response));

let host = '';
let cache = '';
const root = mkdtempSync(join(tmpdir(), 'multihead-hub-'));
const kept = process.env['XDG_CACHE_HOME'];
beforeAll(async () => {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  host = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});
afterAll(() => {
  if (kept === undefined) delete process.env['XDG_CACHE_HOME'];
  else process.env['XDG_CACHE_HOME'] = kept;
  server.closeAllConnections();
  server.close();
  rmSync(root, { recursive: true });
});
beforeEach(() => {
  cache = mkdtempSync(join(root, 'cache-'));
  process.env['XDG_CACHE_HOME'] = cache;
  [commit, files, requests, isDown, etag, breaksAt] = [
    commits[0],
    { 'config.json': config, 'model.safetensors': weights },
    [],
    false,
    '"1"',
    Infinity,
  ];
  before = async () => {};
});

async function logits(options: OpenModelOptions = {}, name = 'org/tiny'): Promise<Float32Array> {
  using model = await openModel(name, { host, ...options });
  return (await model.logits([5, 6, 7])).data;
}

async function expected(): Promise<Float32Array> {
  using model = await openModel(golden);
  return (await model.logits([5, 6, 7])).data;
}

describe('openModel("ORG/NAME")', () => {
  it('fetches files once, and then asks only for the commit', async () => {
    const seen: FetchProgress[] = [];
    expect(await logits({ onFetch: (progress) => seen.push(progress) })).toEqual(await expected());
    expect(requests.filter((each) => each.startsWith('HEAD'))).toEqual(['HEAD main/config.json']);
    expect(requests.filter((each) => each.includes('model.safetensors '))).toEqual([]);
    expect(new Set(requests).size).toBe(requests.length);
    expect(seen).toContainEqual({ file: 'config.json', loaded: config.length, total: config.length });
    expect(seen).toContainEqual({ file: 'model.safetensors', loaded: weights.length, total: weights.length });
    requests = [];
    expect(await logits({ onFetch: () => expect.unreachable() })).toEqual(await expected());
    expect(requests).toEqual(['HEAD main/config.json']);
    requests = [];
    expect(await logits({ local: true })).toEqual(await expected());
    expect(await logits({ revision: commits[0] })).toEqual(await expected());
    expect(requests).toEqual([]);
  });

  it('opens what is kept while the server or the network is away, and fetches a new commit', async () => {
    await logits();
    isDown = true;
    expect(await logits()).toEqual(await expected());
    expect(await logits({ host: `${host}/` })).toEqual(await expected());
    isDown = false;
    commit = commits[1];
    files['config.json'] = Buffer.from(config.toString().replace(/"layer_norm_epsilon": [^,]+/, '"layer_norm_epsilon": 0.5'));
    expect(await logits()).not.toEqual(await expected());
    expect(requests).toContain(`GET ${commits[1]}/model.safetensors`);
    requests = [];
    expect(await logits({ local: true })).not.toEqual(await expected());
    expect(await logits({ revision: commits[0], local: true })).toEqual(await expected());
    expect(requests).toEqual([]);
  });

  it('goes on after the last whole piece of a file that broke off', async () => {
    files['model.safetensors'] = large;
    breaksAt = piece + 1000;
    expect((await rejectionOf(logits())).code).toBe('E_LOAD');
    breaksAt = Infinity;
    requests = [];
    expect(await logits()).toEqual(await expected());
    expect(requests.filter((each) => each.includes('model.safetensors'))).toEqual([`GET ${commit}/model.safetensors bytes=${piece}-`]);
    expect(await logits({ local: true })).toEqual(await expected());
  });

  it('begins anew if the file has changed since', async () => {
    files['model.safetensors'] = Buffer.from(large).fill(1, 2 ** 20);
    breaksAt = piece + 1000;
    expect((await rejectionOf(logits())).code).toBe('E_LOAD');
    [breaksAt, etag, requests] = [Infinity, '"2"', []];
    files['model.safetensors'] = large;
    expect(await logits()).toEqual(await expected());
    const asked = requests.filter((each) => each.includes('model.safetensors'));
    expect(asked).toEqual([`GET ${commit}/model.safetensors bytes=${piece}-`, `GET ${commit}/model.safetensors`]);
  });

  it('fetches a file again whose record was cut, and opens a model where nothing can be kept', async () => {
    await logits();
    const record = readdirSync(cache, { recursive: true }).find((name) => String(name).endsWith('config.json~')) as string;
    writeFileSync(join(cache, record), '{"piec');
    expect(await logits()).toEqual(await expected());
    writeFileSync(join(cache, 'file'), '');
    process.env['XDG_CACHE_HOME'] = join(cache, 'file');
    expect(await logits()).toEqual(await expected());
    expect(await logits({ revision: 'x'.repeat(300) })).toEqual(await expected());
  });

  it('names the file that breaks off, and takes no path that leaves the model', async () => {
    breaksAt = 100;
    expect((await rejectionOf(logits())).argument).toMatch(/model\.safetensors$/);
    requests = [];
    for (const path of ['../../../../../other.gguf', 'a/../b.gguf', 'a//b.gguf']) {
      expect(await rejectionOf(logits({}, `org/tiny/${path}`))).toMatchObject({ code: 'E_OPTION', argument: 'source' });
    }
    expect(requests).toEqual([]);
  });

  it('fetches the files of an index side by side', async () => {
    const { tensors } = readSafetensors(weights);
    const names = Object.keys(tensors);
    const halves = [names.filter((_, at) => at % 2 === 0), names.filter((_, at) => at % 2 === 1)];
    delete files['model.safetensors'];
    const map: Record<string, string> = {};
    halves.forEach((half, at) => {
      const file = `model-${at}.safetensors`;
      files[file] = Buffer.from(writeSafetensors(Object.fromEntries(half.map((name) => [name, tensors[name]])) as never));
      for (const name of half) map[name] = file;
    });
    files['model.safetensors.index.json'] = Buffer.from(JSON.stringify({ weight_map: map }));
    // Neither is sent before both are asked for.
    let [waiting, release] = [0, () => {}];
    const both = new Promise<void>((resolve) => (release = resolve));
    before = async () => {
      if ((waiting += 1) === 2) release();
      await both;
    };
    expect(await logits()).toEqual(await expected());
    requests = [];
    expect(await logits({ local: true })).toEqual(await expected());
  });

  it('says what is missing without a network, without the model, and where nothing may be fetched', async () => {
    const refused = async (options: OpenModelOptions, code: string, words: RegExp, name = 'org/tiny'): Promise<void> => {
      const error = await rejectionOf(logits(options, name));
      expect(error, error.message).toMatchObject({ code });
      expect(error.message).toMatch(words);
    };
    await refused({ host: 'http://127.0.0.1:1' }, 'E_LOAD', /org\/tiny\/resolve\/main\/config\.json: .* no connection \(.+\), and no kept file/);
    await refused({ local: true }, 'E_LOAD', /config\.json: .* none that is kept, and local: true forbids to fetch it/);
    expect(requests).toEqual([]);
    await refused({}, 'E_LOAD', /org\/none\/resolve\/main\/config\.json: .*HTTP status 401/, 'org/none');
    delete files['model.safetensors'];
    await refused({}, 'E_FORMAT', /model\.safetensors: expected a file of this name of org\/tiny on the hub, got none/);
    const aborter = new AbortController();
    commit = commits[1];
    await refused({ signal: aborter.signal, onFetch: () => aborter.abort() }, 'E_ABORTED', /aborted/);
    for (const options of [{ revision: '..' }, { revision: 1 }, { host: 'hub' }, { local: 1 }, { onFetch: 1 }]) {
      await refused(options as never, 'E_OPTION', new RegExp(`^${Object.keys(options)[0]}: `));
    }
    await refused({ local: true }, 'E_OPTION', /^local: expected none for an address/, `${host}/org/tiny/resolve/main`);
  });

  it('takes a path that exists, and asks nobody', async () => {
    const here = mkdtempSync(join(root, 'here-'));
    mkdirSync(join(here, 'org'));
    symlinkSync(golden, join(here, 'org', 'tiny'));
    const from = process.cwd();
    process.chdir(here);
    try {
      expect(await logits()).toEqual(await expected());
    } finally {
      process.chdir(from);
    }
    expect([requests, readdirSync(cache)]).toEqual([[], []]);
  });

  it('keeps a model in the Cache API where there is no file system, else in memory', async () => {
    const entries = new Map<string, Response>();
    const room = {
      match: async (key: string) => entries.get(key)?.clone(),
      put: async (key: string, response: Response) => void entries.set(key, response),
    };
    const { getBuiltinModule } = process;
    const open = async (local: boolean): Promise<Buffer> => {
      const options = { revision: 'main', host, local, signal: undefined, onFetch: undefined };
      Object.assign(process, { getBuiltinModule: undefined });
      const folder = await findFolder('org/tiny', options).finally(() => Object.assign(process, { getBuiltinModule }));
      const file = await folder.open('model.safetensors');
      if (isAbsent(file)) throw file.reason;
      return Buffer.from(await file.bytes.read(0, (file as OpenFile).bytes.size as number));
    };
    files['model.safetensors'] = large;
    expect((await open(false)).equals(large)).toBe(true);
    expect(entries.size).toBe(0);
    Object.assign(globalThis, { caches: { open: async () => room } });
    try {
      expect((await open(false)).equals(large)).toBe(true);
      requests = [];
      expect((await open(true)).equals(large)).toBe(true);
      expect(requests).toEqual([]);
      expect([...entries.keys()].every((key) => new URL(key).href === key)).toBe(true);
      // A piece that is gone is fetched at the next call.
      for (const key of entries.keys()) if (key.endsWith('~1')) entries.delete(key);
      await expect(open(true)).rejects.toMatchObject({ code: 'E_LOAD', argument: 'model.safetensors' });
      expect((await open(false)).equals(large)).toBe(true);
    } finally {
      Reflect.deleteProperty(globalThis, 'caches');
    }
    expect(readdirSync(cache)).toEqual([]);
  });
});
