// The build's additions to the page: its security policy, early requests for the first files, an address for previews,
// and the service worker's list of files.

import { createHash } from 'node:crypto';
import { cpSync, readdirSync, readFileSync } from 'node:fs';
import { join, relative, sep } from 'node:path';
import type { HtmlTagDescriptor, Plugin, Rolldown } from 'vite';
import { compressFolder } from './encoded.mjs';
import { policyInPage } from './serve.mjs';

type Bundle = Rolldown.OutputBundle;

/** Applies to the built page only, because the development server needs inline styles. */
export const securityPolicy: Plugin = {
  name: 'content-security-policy',
  apply: 'build',
  transformIndexHtml: () => [
    {
      tag: 'meta',
      attrs: { 'http-equiv': 'Content-Security-Policy', content: policyInPage },
      injectTo: 'head-prepend',
    },
  ],
};

const matching = (bundle: Bundle, name: RegExp): string[] =>
  Object.keys(bundle)
    .filter((file) => name.test(file))
    .sort();

function only(bundle: Bundle, name: RegExp): string {
  const found = matching(bundle, name);
  if (found.length !== 1) throw new Error(`Expected one file like ${name} in the bundle, got ${found.join(', ') || 'none'}`);
  return found[0]!;
}

/** The chunks that a chunk waits for before it runs. */
function importsOf(bundle: Bundle, name: string): string[] {
  const chunk = bundle[name];
  const direct = chunk?.type === 'chunk' ? chunk.imports : [];
  return [...new Set(direct.flatMap((file) => [file, ...importsOf(bundle, file)]))];
}

/**
 * Requests the first script, which fetches the WebAssembly, its imports, and the worker before the page's script runs.
 */
export const earlyRequests: Plugin = {
  name: 'early-requests',
  apply: 'build',
  transformIndexHtml: {
    order: 'post',
    handler(_, { bundle }) {
      const boot = only(bundle!, /^assets\/boot-.*\.js$/);
      const worker = only(bundle!, /^assets\/attention_worker-.*\.js$/);
      const preloaded = [worker, ...importsOf(bundle!, boot)];
      const tags: HtmlTagDescriptor[] = [
        { tag: 'script', attrs: { type: 'module', async: true, crossorigin: true, src: `./${boot}` } },
        ...preloaded.map((file) => ({ tag: 'link', attrs: { rel: 'modulepreload', crossorigin: true, href: `./${file}` } })),
      ];
      return tags.map((tag) => ({ ...tag, injectTo: 'head' }));
    },
  },
};

/**
 * Adds addresses, which a build that may be hosted anywhere does not know.
 * @param address where the page will be, for example https://example.org/multihead/: previews and search engines want
 *   absolute addresses; from MULTIHEAD_ADDRESS
 * @param source where the source code is; from MULTIHEAD_SOURCE
 */
export const publicAddresses = (address: string | undefined, source: string | undefined): Plugin => ({
  name: 'public-addresses',
  transformIndexHtml(html) {
    const tags: HtmlTagDescriptor[] = [];
    let made = html;
    if (source) {
      const { href } = new URL(source);
      made = made.replace('<!-- source -->', () => `<a href="${escaped(href)}">Source code</a>`);
    }
    if (address) {
      const base = new URL(address.endsWith('/') ? address : `${address}/`);
      made = made.replace('content="./card.png"', () => `content="${escaped(new URL('card.png', base).href)}"`);
      tags.push(
        { tag: 'link', attrs: { rel: 'canonical', href: base.href }, injectTo: 'head' },
        { tag: 'meta', attrs: { property: 'og:url', content: base.href }, injectTo: 'head' },
      );
    }
    return { html: made.replace('<!-- source -->', ''), tags };
  },
});

const escaped = (text: string): string => text.replaceAll('&', '&amp;').replaceAll('"', '&quot;');

/** Files that are not copied for offline use: source maps, the preview picture, the peers of the speed section, and what the page does not call. */
const notKept =
  /\.map$|^card\.png$|^english\/README\.md$|^assets\/(peer_|ort-|tfjs-|(multihead-)?(beams|caches|embed|gpu|hub|sparse_autoencoder|trainer)-)/;

/** Files that the page works without: what runs the visitor's own model. */
const ofModels = /^assets\/(models_worker|model_worker|model_generation|model_gpu|model_team|tokenizers|generator|gguf|image)\b.*\.js$/;

/** Files that are kept for offline use when they are first used: the English model, and what the laboratory computes with. */
const keptLater = /^english\/|^assets\/(multihead-)?analyses-/;

const contentOf = (file: Bundle[string]): string | Uint8Array => (file.type === 'chunk' ? file.code : file.source);

/** Fills in the service worker's list of files. Its version is a hash of the names and contents of all files. */
export const offlineCopy: Plugin = {
  name: 'offline-copy',
  apply: 'build',
  enforce: 'post',
  generateBundle(_, bundle) {
    const worker = bundle['service_worker.js'];
    if (worker?.type !== 'chunk') throw new Error('service_worker.js is not in the bundle');
    if (worker.imports.length > 0) throw new Error('the service worker is a classic script and cannot import');
    const folder = join(import.meta.dirname, 'public');
    const published = readdirSync(folder, { withFileTypes: true, recursive: true })
      .filter((entry) => entry.isFile())
      .map(({ parentPath, name }) => join(parentPath, name))
      .map((path) => [relative(folder, path).split(sep).join('/'), readFileSync(path)] as const);
    const made = Object.entries(bundle).map(([name, file]) => [name, contentOf(file)] as const);
    const all = [...made, ...published].sort(([a], [b]) => (a < b ? -1 : 1));
    const hash = createHash('sha256');
    for (const [name, content] of all) hash.update(`${name}\0`).update(content);
    const wasm = Object.fromEntries(
      ['relaxed', 'simd128'].map((simd) => {
        const fileOf = (part: string): string => only(bundle, new RegExp(`^assets/${part}-${simd}-.*\\.wasm$`));
        const ofModels = ['models', 'formats', 'generation', 'gpu', 'inspection', 'pooling', 'quantized', 'team'].map((part) =>
          fileOf(`multihead-${part}`),
        );
        return [simd, { page: fileOf('multihead'), models: ofModels }];
      }),
    );
    const others = ['index.html', 'service_worker.js', ...Object.values(wasm).flatMap((files) => Object.values(files).flat())];
    const names = all.map(([name]) => name).filter((name) => !others.includes(name) && !notKept.test(name));
    const build = {
      version: hash.digest('hex').slice(0, 16),
      main: only(bundle, /^assets\/index-.*\.js$/),
      files: names.filter((name) => !ofModels.test(name) && !keptLater.test(name)),
      models: names.filter((name) => ofModels.test(name)),
      later: names.filter((name) => keptLater.test(name)),
      wasm,
    };
    const placeholder = /\w+\.__BUILD__/;
    if (!placeholder.test(worker.code)) throw new Error('the service worker has no place for its list of files');
    worker.code = worker.code.replace(placeholder, () => JSON.stringify(build));
  },
};

/** Copies the guides and references, if `npm run docs` has built them, and compresses all files. */
export const complete = (guides: string | undefined, folder: string): Plugin => ({
  name: 'complete',
  apply: 'build',
  async closeBundle() {
    if (guides !== undefined) cpSync(guides, join(folder, 'docs'), { recursive: true });
    await compressFolder(folder);
  },
});
