// The source files of the projects: a call of the package in a page, a worker, a service worker and a program.

/** The calls that a project makes in order: load() of some modules, createPool() of one module, and openModel() of one. */
export const FILES = { load: ['multihead', 'multihead/core'], createPool: 'multihead/pool', openModel: 'multihead/models' };
export const INLINE = { load: ['multihead/inline'], createPool: 'multihead/inline' };

/**
 * Source of calls whose result is known: the first token of attention sees only itself, and a GPT-2 repeats a token if all its
 * numbers are 0 but those of the embedding and the last norm. A service worker cannot start workers.
 */
export function call({ load, createPool, openModel } = FILES) {
  const imported = load.map((module, index) => `import { load as load${index} } from '${module}';`);
  const attempts = load.map((module, index) => `['${module}', () => here(load${index})],`);
  if (createPool) {
    imported.push(`import { createPool } from '${createPool}';`);
    attempts.push(`['createPool() of ${createPool}', () => inWorkers(createPool)],`);
  }
  if (openModel) {
    imported.push(`import { openModel } from '${openModel}';`);
    attempts.push(`['openModel() of ${openModel}', () => ofModel(openModel)],`);
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
async function ofModel(openModel) {
  const shapes = { 'wte.weight': [4, 4], 'wpe.weight': [8, 4], 'ln_f.weight': [4], 'ln_f.bias': [4] };
  const matrices = { 'attn.c_attn': [4, 12], 'attn.c_proj': [4, 4], 'mlp.c_fc': [4, 16], 'mlp.c_proj': [16, 4] };
  for (const norm of ['ln_1', 'ln_2']) for (const part of ['weight', 'bias']) shapes['h.0.' + norm + '.' + part] = [4];
  for (const [name, shape] of Object.entries(matrices)) {
    shapes['h.0.' + name + '.weight'] = shape;
    shapes['h.0.' + name + '.bias'] = [shape[1]];
  }
  const header = {};
  const numbers = [];
  for (const [name, shape] of Object.entries(shapes)) {
    const begin = 4 * numbers.length;
    const count = shape.reduce((a, b) => a * b);
    for (let i = 0; i < count; i += 1) numbers.push(name === 'ln_f.weight' || (name === 'wte.weight' && i % 5 === 0) ? 1 : 0);
    header[name] = { dtype: 'F32', shape, data_offsets: [begin, 4 * numbers.length] };
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const length = new BigUint64Array([BigInt(text.length)]);
  const config = { model_type: 'gpt2', n_embd: 4, n_head: 2, n_layer: 1, n_positions: 8, vocab_size: 4 };
  const file = (name, parts) => Object.assign(new Blob(parts), { name });
  const files = [
    file('config.json', [JSON.stringify(config)]),
    file('model.safetensors', [length, text, new Float32Array(numbers)]),
  ];
  const model = await openModel(files, { workers: 2 });
  try {
    const tokens = [];
    for await (const { token } of model.generate([2], { maxNewTokens: 3 })) tokens.push(token);
    if (String(tokens) !== '2,2,2') throw new Error('wrong tokens: ' + tokens);
    if (model.workers > 0 !== (typeof ServiceWorkerGlobalScope === 'undefined')) throw new Error(model.workers + ' workers');
  } finally {
    model.dispose();
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
