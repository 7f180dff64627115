// The sources of the projects: a call of the package in a page, a worker, a service worker and a program.

/** A call whose result is known: the first token sees itself alone. */
export const call = (entry = 'multihead') => `
import { load } from '${entry}';
export async function call() {
  try {
    const mh = await load();
    return mh.scope(() => {
      const x = mh.tensor([1, 1, 2, 2], new Float32Array([1, 2, 3, 4]));
      const { out } = mh.attention(x, x, x, { causal: 'topLeft' });
      const right = out.data[0] === 1 && out.data[1] === 2 && out.data[2] > 1;
      return right ? 'ok ' + mh.backend.simd : 'failed: ' + out.data;
    });
  } catch (error) {
    return 'failed: ' + error.message;
  }
}
`;

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

/** A page that calls, and one whose worker does. */
export const pages = (entry) => ({
  'call.js': call(entry),
  'index.html': html,
  'main.js': page(),
  'with-worker/index.html': html,
  'with-worker/main.js': workerPage,
  'with-worker/worker.js': worker('../call.js'),
});
