// The source files of the projects: a call of the package in a page, a worker, a service worker and a program.

/** The calls that a project makes in order: load() of some modules, and createPool() of one module. */
export const FILES = { load: ['multihead', 'multihead/core'], createPool: 'multihead/pool' };
export const INLINE = { load: ['multihead/inline'], createPool: 'multihead/inline' };

/**
 * Source of calls whose result is known, because the first token sees only itself. A service worker cannot start
 * workers.
 */
export function call({ load, createPool } = FILES) {
  const imported = load.map((module, index) => `import { load as load${index} } from '${module}';`);
  const attempts = load.map((module, index) => `['${module}', () => here(load${index})],`);
  if (createPool) {
    imported.push(`import { createPool } from '${createPool}';`);
    attempts.push(`['createPool() of ${createPool}', () => inWorkers(createPool)],`);
  }
  return `${imported.join('\n')}
const x = { shape: [1, 1, 2, 2], data: new Float32Array([1, 2, 3, 4]) };
const causal = { causal: 'topLeft' };
const check = ({ data }) => {
  if (data[0] !== 1 || data[1] !== 2 || !(data[2] > 1)) throw new Error('wrong numbers: ' + data);
};
async function here(load) {
  const mh = await load();
  mh.scope(() => check(mh.attention(x, x, x, causal).out));
  return mh.backend.simd;
}
async function inWorkers(createPool) {
  const pool = await createPool({ workers: 2 });
  try {
    check((await pool.attention(x, x, x, causal)).out);
    const { workers, why, simd } = pool.backend;
    if (workers !== (typeof ServiceWorkerGlobalScope === 'undefined' ? 2 : 0)) throw new Error(why);
    return simd;
  } finally {
    pool.dispose();
  }
}
const attempts = [
  ${attempts.join('\n  ')}
];
export async function call() {
  const seen = [];
  for (const [name, attempt] of attempts) {
    try {
      seen.push(await attempt());
    } catch (error) {
      return 'failed: ' + name + ': ' + error.message;
    }
  }
  return 'ok ' + seen[0];
}
`;
}

/** Converts the source to CommonJS. */
export const required = (text) =>
  text
    .replace(/^import { (\w+)(?: as (\w+))? } from ('.*')/gm, (_, name, own = name, module) => `const { ${name}: ${own} } = require(${module})`)
    .replace(/^export /gm, '');

export const html = '<!doctype html><html lang="en"><title>waits</title><script type="module" src="./main.js"></script></html>';
const importing = (module) => `import { call } from '${module}';\n`;

export const program = (module = './call.js') => `${importing(module)}call().then(console.log);\n`;
export const page = (module = './call.js') => `${importing(module)}call().then((text) => { document.title = text; });\n`;
export const worker = (module = './call.js') => `${importing(module)}call().then((text) => postMessage(text));\n`;
export const workerPage = `
const worker = new Worker(new URL('./worker.js', import.meta.url), { type: 'module' });
worker.onmessage = ({ data }) => { document.title = data; };
worker.onerror = ({ message }) => { document.title = 'failed: ' + message; };
`;
export const serviceWorker = (module = './call.js') => `${importing(module)}
addEventListener('message', (event) => {
  event.waitUntil(call().then((text) => event.source.postMessage(text)));
});
`;
export const serviceWorkerPage = `
navigator.serviceWorker.onmessage = ({ data }) => { document.title = data; };
navigator.serviceWorker.register('./service_worker.js', { type: 'module' })
  .then(() => navigator.serviceWorker.ready)
  .then(({ active }) => active.postMessage('call'))
  .catch((error) => { document.title = 'failed: ' + error.message; });
`;

/** Two pages: one makes the calls, the worker of the other makes them. */
export const pages = (modules) => ({
  'call.js': call(modules),
  'index.html': html,
  'main.js': page(),
  'with-worker/index.html': html,
  'with-worker/main.js': workerPage,
  'with-worker/worker.js': worker('../call.js'),
});
