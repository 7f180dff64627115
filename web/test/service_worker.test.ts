// Runs the service worker of several builds, one after another, on caches in this thread.

import { afterEach, expect, it, vi } from 'vitest';

const home = 'https://a.example/page/';
afterEach(() => void vi.unstubAllGlobals());

function setUp() {
  const stored = new Map<string, Map<string, string>>();
  /** The files of the server. */
  const served = new Map<string, string>();
  const full = { addAll: false };
  const get = async (file: string): Promise<Response> => {
    const text = served.get(file);
    return new Response(text ?? '', { status: text === undefined ? 404 : 200 });
  };
  const cacheOf = (files: Map<string, string>) => {
    const add = async (file: string): Promise<void> => {
      const answer = await get(file);
      if (!answer.ok) throw new TypeError('not found');
      files.set(file, await answer.text());
    };
    return {
      add,
      addAll: async (list: string[]) => {
        if (full.addAll) throw new DOMException('full', 'QuotaExceededError');
        for (const file of list) await add(file);
      },
      put: async (file: string, answer: Response) => void files.set(file, await answer.text()),
      match: async (file: string) => (files.has(file) ? new Response(files.get(file)) : undefined),
    };
  };
  const open = (name: string): Map<string, string> => stored.get(name) ?? stored.set(name, new Map()).get(name)!;
  vi.stubGlobal('fetch', get);
  vi.stubGlobal('caches', {
    open: async (name: string) => cacheOf(open(name)),
    keys: async () => [...stored.keys()],
    delete: async (name: string) => stored.delete(name),
    match: async (file: string, { cacheName }: { cacheName?: string }) => {
      const text = [...stored]
        .filter(([name]) => cacheName === undefined || name === cacheName)
        .find(([, files]) => files.has(file))?.[1]
        .get(file);
      return text === undefined ? undefined : new Response(text);
    },
  });

  /** Serves build number `version`, and installs and activates its worker. Returns false if it does not install. */
  async function deploy(version: number): Promise<boolean> {
    served.clear();
    const main = `assets/index-${version}.js`;
    const files = {
      '': main,
      [main]: 'main',
      'assets/page-1.wasm': 'wasm',
      'assets/models-1.wasm': 'models',
      'assets/tokenizers-1.js': 'words',
      'english/config.json': `english ${version}`,
    };
    for (const [name, text] of Object.entries(files)) served.set(home + name, text);
    const listeners: Record<string, (event: { waitUntil(work: Promise<void>): void }) => void> = {};
    const wasm = { relaxed: { page: 'assets/page-1.wasm', models: ['assets/models-1.wasm'] } };
    vi.stubGlobal('self', {
      __BUILD__: { version: String(version), main, files: [main], models: ['assets/tokenizers-1.js'], later: ['english/config.json'], wasm },
      location: { href: `${home}service_worker.js?simd=relaxed` },
      registration: { scope: home },
      clients: { claim: async () => {} },
      skipWaiting: async () => {},
      addEventListener: (name: string, listener: (typeof listeners)[string]) => (listeners[name] = listener),
    });
    vi.resetModules();
    const script = '../src/service_worker.js';
    await import(script);
    try {
      for (const name of ['install', 'activate']) {
        let work = Promise.resolve();
        listeners[name]!({ waitUntil: (given) => void (work = given) });
        await work;
      }
      return true;
    } catch {
      return false;
    }
  }
  const copy = (version: number) => stored.get(`multihead ${home} ${version} relaxed`);
  const names = () => [...stored.keys()].map((name) => name.split(' ')[2]);
  return { deploy, copy, names, full };
}

it('keeps the files of a build, what runs models among them, and the copy before it', async () => {
  const { deploy, copy, names } = setUp();
  for (const version of [1, 2, 3]) expect(await deploy(version)).toBe(true);
  expect(names()).toEqual(['2', '3']);
  const paths = [...copy(3)!.keys()].map((file) => file.slice(home.length));
  expect(paths.sort()).toEqual(['', 'assets/index-3.js', 'assets/models-1.wasm', 'assets/page-1.wasm', 'assets/tokenizers-1.js']);
});

it('a build that cannot be kept takes no earlier copy away, then or later', async () => {
  const { deploy, copy, names, full } = setUp();
  await deploy(1);
  full.addAll = true;
  expect(await deploy(2)).toBe(false);
  expect(copy(1)!.get(home)).toBe('assets/index-1.js');
  full.addAll = false;
  expect(await deploy(3)).toBe(true);
  expect(names(), 'the last complete copy, not that of build 2').toEqual(['1', '3']);
});

it('what the visitor has loaded for use without a network stays, however many builds follow', async () => {
  const { deploy, copy } = setUp();
  await deploy(1);
  copy(1)!.set(`${home}english/config.json`, 'english 1');
  for (const version of [2, 3, 4]) await deploy(version);
  expect(copy(4)!.get(`${home}english/config.json`)).toBe('english 1');
});
