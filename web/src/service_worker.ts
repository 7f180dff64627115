// The service worker: keeps a copy of one build, so that the page works offline after its first load.
//
// The names of scripts, styles and WebAssembly files contain hashes of their contents, so a page can only get the files
// that it was built with. The page itself comes from the network if that answers within 3 s, else from the copy.

interface Build {
  readonly version: string;
  readonly main: string;
  readonly files: readonly string[];
  /** Files that run the visitor's own model. The page works without them. */
  readonly models: readonly string[];
  /** Files that are kept when they are first used. */
  readonly later: readonly string[];
  /** Names of the WebAssembly files of each build: of the page and of opened models. */
  readonly wasm: Readonly<Record<string, { readonly page: string; readonly models: readonly string[] }>>;
}
/** `__BUILD__` is written by the build, see plugins.ts. */
const scope = self as unknown as ServiceWorkerGlobalScope & { readonly __BUILD__: Build };

const { version, main, files, models, later, wasm } = scope.__BUILD__;
/** The page names the WebAssembly build that it uses; the other build is not kept. */
const simd = new URL(scope.location.href).searchParams.get('simd') ?? '';
const home = scope.registration.scope;
// Include the address, because several copies of the page on one origin share its caches.
const ours = `multihead ${home} `;
const cacheName = `${ours}${version} ${simd}`;
const networkTimeout = 3000;

const addressesOf = (names: readonly string[]): string[] => names.map((name) => new URL(name, home).href);
const laterFiles = new Set(addressesOf(later));

/** Makes the copy of this build; if that fails, the copies of older builds stay as they are. */
async function keep(): Promise<void> {
  const page = await fetch(home, { cache: 'no-cache' });
  // Between two deployments the server may have a newer page than this list of files.
  if (!page.ok || !(await page.clone().text()).includes(main)) throw new Error('the page is not of this build');
  const build = wasm[simd];
  const cache = await caches.open(cacheName);
  await cache.addAll(addressesOf([...files, ...(build ? [build.page] : [])]));
  // A browser without room for the rest, or a network that ends meanwhile, does not take the page away.
  const rest = [...laterFiles].map((file) => carryOver(file, cache));
  const ofModels = addressesOf([...models, ...(build?.models ?? [])]);
  rest.push(...ofModels.map(async (file) => (await carryOver(file, cache)) || (await cache.add(file), true)));
  await Promise.allSettled(rest);
  // The page comes last: a copy without it is not complete.
  await cache.put(home, page);
}

/** Copies a file from an older cache, so that it works offline after a deployment, too. Returns false if no cache has it. */
async function carryOver(file: string, cache: Cache): Promise<boolean> {
  const copy = await copyOf(file);
  if (copy) await cache.put(file, copy);
  return copy !== undefined;
}

/** Deletes older copies but the last complete one, because open pages may load a part of it later. */
async function forgetOlder(): Promise<void> {
  const others = (await caches.keys()).filter((other) => other.startsWith(ours) && other !== cacheName).reverse();
  let found = false;
  for (const other of others) {
    const isPrevious: boolean = !found && (await (await caches.open(other)).match(home)) !== undefined;
    if (!isPrevious) await caches.delete(other);
    found ||= isPrevious;
  }
}

const copyOf = async (address: string): Promise<Response | undefined> =>
  (await caches.match(address, { cacheName, ignoreVary: true })) ?? (await caches.match(address, { ignoreVary: true }));

async function pageFor(request: Request): Promise<Response> {
  const { origin, pathname } = new URL(request.url);
  const isHome = [home, `${home}index.html`].includes(origin + pathname);
  const online = fetch(request).then((response) => {
    if (isHome && response.status >= 400) throw new Error(`HTTP status ${response.status}`);
    return response;
  });
  if (!isHome) return online;
  const late = new Promise<undefined>((done) => setTimeout(done, networkTimeout));
  const answer = await Promise.race([online, late]).catch(() => undefined);
  return answer ?? (await copyOf(home)) ?? online;
}

/** Keeps a copy of a file of `later`. A browser without room for them goes on without. */
async function keepLater(address: string, response: Response): Promise<void> {
  if (!response.ok || !laterFiles.has(address)) return;
  const copy = response.clone();
  const cache = await caches.open(cacheName);
  await cache.put(address, copy).catch(() => undefined);
}

/**
 * Uses the copy first for names with a hash, which identify the content. A file with another name comes from the
 * network first, because it may belong to another build or page.
 */
async function fileFor(event: FetchEvent): Promise<Response> {
  const { request } = event;
  if (request.url.startsWith(`${home}assets/`)) {
    const copy = await copyOf(request.url);
    if (copy) return copy;
    const response = await fetch(request);
    event.waitUntil(keepLater(request.url, response));
    return response;
  }
  try {
    const response = await fetch(request);
    event.waitUntil(keepLater(request.url, response));
    return response;
  } catch (error) {
    const copy = await copyOf(request.url);
    if (copy) return copy;
    throw error;
  }
}

scope.addEventListener('install', (event) => {
  event.waitUntil(keep().then(() => scope.skipWaiting()));
});

scope.addEventListener('activate', (event) => {
  event.waitUntil(forgetOlder().then(() => scope.clients.claim()));
});

scope.addEventListener('fetch', (event) => {
  const { request } = event;
  if (request.method !== 'GET' || !request.url.startsWith(home)) return;
  if (request.mode === 'navigate') event.respondWith(pageFor(request));
  else event.respondWith(fileFor(event));
});
