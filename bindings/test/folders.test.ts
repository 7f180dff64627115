// Folders of models as people have them: the table tests/models/folder_cases.json, by path, by address and as given files, and
// servers with odd answers.

import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type Model, type ModelFile, type ModelSource, openModel } from 'multihead/models';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { rejectionOf } from './builds.ts';

const tests = fileURLToPath(new URL('../../tests', import.meta.url));
const goldens = join(tests, 'conformance', 'models');

type FileOfCase = null | string | readonly unknown[] | Readonly<Record<string, unknown>>;
interface FolderCase {
  readonly name: string;
  readonly base: string;
  readonly files: Readonly<Record<string, FileOfCase>>;
  readonly lists?: boolean;
  readonly embeds?: boolean;
  readonly expect: {
    readonly ids?: readonly number[];
    readonly endIds?: readonly number[];
    readonly vector?: readonly number[];
    readonly raw?: readonly number[];
    readonly code?: string;
    readonly argument?: string;
    readonly message?: string;
  };
}
const { cases } = JSON.parse(readFileSync(join(tests, 'models', 'folder_cases.json'), 'utf8')) as { cases: FolderCase[] };

function safetensorsOf(tensors: Record<string, { shape: number[]; data: number[] }>): Buffer {
  let end = 0;
  const entries = Object.entries(tensors).map(([name, { shape, data }]) => [
    name,
    { dtype: 'F32', shape, data_offsets: [end, (end += 4 * data.length)] },
  ]);
  const header = Buffer.from(JSON.stringify(Object.fromEntries(entries)));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  return Buffer.concat([length, header, ...Object.values(tensors).map(({ data }) => Buffer.from(Float32Array.from(data).buffer))]);
}

/** The files of a case by their paths. */
function filesOfCase({ base, files }: FolderCase): Map<string, Buffer> {
  const read = (name: string): Buffer => readFileSync(join(goldens, base, name));
  const all = new Map(['config.json', 'model.safetensors'].map((name) => [name, read(name)]));
  for (const [name, file] of Object.entries(files)) {
    const { $copy, $first, $tensors } = Object(file) as { $copy?: string; $first?: number; $tensors?: Parameters<typeof safetensorsOf>[0] };
    if (file === null) all.delete(name);
    else if ($copy !== undefined) all.set(name, read($copy));
    else if ($first !== undefined) all.set(name, read(name).subarray(0, $first));
    else if ($tensors !== undefined) all.set(name, safetensorsOf($tensors));
    else all.set(name, Buffer.from(typeof file === 'string' ? file : JSON.stringify(file)));
  }
  return all;
}

const root = mkdtempSync(join(tmpdir(), 'multihead-folders-'));

function write(name: string, files: Map<string, Buffer>): string {
  const folder = join(root, name);
  for (const [path, bytes] of files) {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), bytes);
  }
  return folder;
}

/** What the server answers if there is no such file. */
type Missing = (response: ServerResponse) => void;
const notFound: Missing = (response) => response.writeHead(404).end();
let missing: Missing = notFound;
let requests: string[] = [];
let served: (url: URL) => Buffer | undefined = () => undefined;
const server = createServer((request: IncomingMessage, response: ServerResponse) => {
  const url = new URL(request.url ?? '', 'http://localhost');
  requests.push(url.pathname + url.search);
  const bytes = served(url);
  if (bytes === undefined) missing(response);
  else response.end(bytes);
});
let address = '';
beforeAll(async () => {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  address = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});
afterAll(() => {
  server.closeAllConnections();
  server.close();
  rmSync(root, { recursive: true });
});

function serve(files: Map<string, Buffer>, answer: Missing = notFound): string {
  served = ({ pathname }) => files.get(decodeURIComponent(pathname).slice('/models/x/'.length));
  missing = answer;
  requests = [];
  return `${address}/models/x`;
}

async function greedy(model: Model, prompt: readonly number[], count: number): Promise<number[]> {
  const ids: number[] = [];
  for await (const { token } of model.generate(prompt, { maxNewTokens: count })) ids.push(token);
  return ids;
}

function expectNear(got: Float32Array, wanted: readonly number[]): void {
  expect(got.length).toBe(wanted.length);
  got.forEach((value, at) => expect(Math.abs(value - (wanted[at] as number))).toBeLessThan(2e-6));
}

async function check({ embeds, expect: wanted }: FolderCase, source: ModelSource): Promise<void> {
  if (wanted.code !== undefined) {
    const error = await rejectionOf(
      openModel(source).then(async (model) => {
        if (embeds) await model.embed([[5]]).finally(() => model.dispose());
      }),
    );
    expect([error.code, error.argument]).toEqual([wanted.code, expect.stringContaining(wanted.argument as string)]);
    expect(error.message).toContain(wanted.message);
    return;
  }
  using model = await openModel(source);
  if (wanted.ids) expect(await greedy(model, [5, 6, 7], wanted.ids.length)).toEqual(wanted.ids);
  if (wanted.endIds) expect(model.info.endIds).toEqual(wanted.endIds);
  if (wanted.vector === undefined) return;
  expectNear(await model.embed([5, 6, 7, 8]), wanted.vector);
  expectNear(await model.embed([5, 6, 7, 8], { normalize: false }), wanted.raw as number[]);
}

/** A path in the folder `x`, as a browser gives the files of a folder. */
const given = (files: Map<string, Buffer>): ModelFile[] =>
  [...files].map(([path, bytes]) => {
    const file = new File([new Uint8Array(bytes)], path.slice(path.lastIndexOf('/') + 1));
    Object.defineProperty(file, 'webkitRelativePath', { value: `x/${path}` });
    return file;
  });

describe('a folder', () => {
  it.each(cases)('by path: $name', async (each) => check(each, write(each.name.replaceAll(/\W/g, '_'), filesOfCase(each))));
  it.each(cases)('as files: $name', async (each) => check(each, given(filesOfCase(each))));
  it.each(cases.filter(({ lists }) => !lists))('by address: $name', async (each) => check(each, serve(filesOfCase(each))));
});

const [plain] = cases as [FolderCase, ...FolderCase[]];
const page: Missing = (response) => response.writeHead(200, { 'content-type': 'text/html' }).end('<!doctype html>');

describe('an address', () => {
  const status =
    (code: number): Missing =>
    (response) =>
      response.writeHead(code).end();
  const untyped: Missing = (response) => response.writeHead(200).end('\n<html>');
  const broken: Missing = (response) => response.destroy();
  it.each([
    ['404', notFound],
    ['403', status(403)],
    ['400', status(400)],
    ['401', status(401)],
    ['405', status(405)],
    ['410', status(410)],
    ['204', status(204)],
    ['HTML', page],
    ['HTML without a type', untyped],
    ['a broken connection', broken],
  ] as [string, Missing][])('opens where a server answers %s for what is missing', async (_, answer) =>
    check(plain, serve(filesOfCase(plain), answer)),
  );

  it('refuses where a server is in trouble, because a file may be there', async () => {
    const error = await rejectionOf(openModel(serve(filesOfCase(plain), status(503))));
    expect([error.code, error.got]).toEqual(['E_LOAD', 'HTTP status 503 Service Unavailable']);
  });

  it('names a page in place of config.json', async () => {
    const files = filesOfCase(plain);
    files.delete('config.json');
    const error = await rejectionOf(openModel(serve(files, page)));
    expect(error.message).toMatch(/config\.json: expected .*, got an HTML page/);
  });

  it('may have a signature behind the path', async () => {
    const source = serve(filesOfCase(plain));
    await check(plain, `${source}?sig=a%2Fb&x=1`);
    expect(requests).toContain('/models/x/config.json?sig=a%2Fb&x=1');
  });

  it('is judged by config.json before anything large is fetched', async () => {
    const files = filesOfCase({ ...plain, files: { 'config.json': { model_type: 'mamba' }, 'tokenizer.json': {} } });
    await rejectionOf(openModel(serve(files)));
    expect(requests.filter((path) => /tokenizer\.json|safetensors$/.test(path))).toEqual([]);
  });

  it('holds no connection to a file of weights while it reads another one, because one that waits may end', async () => {
    const folder = join(goldens, 'qwen3');
    const files = new Map(readdirSync(folder).map((name) => [name, readFileSync(join(folder, name))]));
    const held = new Set<string>();
    const most = new Map<string, number>();
    const body = (name: string, bytes: Buffer): ReadableStream => {
      let at = 0;
      const pull = (to: ReadableStreamDefaultController): void => {
        held.add(name);
        most.set(name, Math.max(held.size, most.get(name) ?? 0));
        if (at < bytes.length) return to.enqueue(new Uint8Array(bytes.subarray(at, (at += 1000))));
        held.delete(name);
        to.close();
      };
      return new ReadableStream({ pull, cancel: () => void held.delete(name) }, { highWaterMark: 0 });
    };
    vi.stubGlobal('fetch', async (url: string) => {
      const name = url.slice(url.lastIndexOf('/') + 1);
      const bytes = files.get(name);
      if (bytes === undefined) return new Response(null, { status: 404 });
      return new Response(name.endsWith('.safetensors') ? body(name, bytes) : new Uint8Array(bytes));
    });
    try {
      (await openModel(`${address}/models/x`)).dispose();
    } finally {
      vi.unstubAllGlobals();
    }
    expect([...most.values()]).toEqual([1, 1, 1]);
    expect(held.size).toBe(0);
  });

  it('fetches no tokenizer.json if the caller has a tokenizer', async () => {
    const tokenizer = { encode: () => ({ ids: [5], tokens: [] }), decode: () => '' };
    (await openModel(serve(filesOfCase(plain)), { tokenizer })).dispose();
    expect(requests).not.toContain('/models/x/tokenizer.json');
  });
});

describe('embed', () => {
  const tokenizer = {
    encode: (text: string, { add_special_tokens: special = true } = {}) => {
      const ids = [...text].map((letter) => 10 + ((letter.codePointAt(0) as number) % 50));
      return { ids: special ? [1, ...ids, 2] : ids, tokens: [] };
    },
    decode: () => '',
  };
  const open = (files: FolderCase['files']) =>
    openModel(write(`embed-${readdirSync(root).length}`, filesOfCase({ ...plain, base: 'bert', files })), { tokenizer });

  it('gives the same vectors for any number of texts, and tells how many are done', async () => {
    using model = await open({});
    const inputs = Array.from({ length: 300 }, (_, at) => Array.from({ length: 1 + ((at * 7) % 40) }, (__, i) => (at + i) % 60));
    const done: number[] = [];
    const vectors = await model.embed(inputs, { onProgress: (count, total) => done.push(count / total) });
    for (const at of [0, 17, 299]) expectNear(vectors[at] as Float32Array, [...(await model.embed(inputs[at] as number[]))]);
    expect(done).toEqual([...done].sort((a, b) => a - b));
    expect(done.at(-1)).toBe(1);
    const aborter = new AbortController();
    const error = await rejectionOf(model.embed(inputs, { signal: aborter.signal, onProgress: () => aborter.abort() }));
    expect(error.code).toBe('E_ABORTED');
  });

  it('cuts long texts, and keeps their special tokens', async () => {
    using model = await open({ 'sentence_bert_config.json': { max_seq_length: 5 } });
    const { ids } = tokenizer.encode('abcdefgh');
    expect(await model.embed('abcdefgh')).toEqual(await model.embed([1, ...ids.slice(1, 4), 2]));
    expect(await model.embed('abcdefgh', { truncate: false })).toEqual(await model.embed(ids, { truncate: false }));
    expect((await rejectionOf(model.embed('x'.repeat(99), { truncate: false }))).code).toBe('E_OPTION');
    using other = await open({});
    expect((await rejectionOf(other.embed('x'.repeat(99)))).code).toBe('E_OPTION');
    expect(await other.embed('x'.repeat(99), { truncate: true })).toHaveLength(16);
  });

  it('puts a prompt before a text', async () => {
    const prompts = { query: 'q: ', document: '' };
    using model = await open({ 'config_sentence_transformers.json': { prompts, default_prompt_name: null } });
    expect(await model.embed('a', { promptName: 'query' })).toEqual(await model.embed('q: a'));
    expect(await model.embed('a', { prompt: 'p' })).toEqual(await model.embed('pa'));
    expect((await rejectionOf(model.embed('a', { promptName: 'other' }))).expected).toBe('one of query, document');
    using other = await open({ 'config_sentence_transformers.json': { prompts, default_prompt_name: 'query' } });
    expect(await other.embed('a')).toEqual(await model.embed('q: a'));
    expect(await other.embed('a', { prompt: '' })).toEqual(await model.embed('a'));
    using bare = await open({ '1_Pooling/config.json': { pooling_mode: 'mean', include_prompt: false } });
    expect((await rejectionOf(bare.embed('a', { prompt: 'p' }))).argument).toBe('prompt');
  });
});
