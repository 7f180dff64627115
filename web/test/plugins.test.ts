import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { earlyRequests, offlineCopy, publicAddresses } from '../plugins.js';

const html = readFileSync(new URL('../index.html', import.meta.url), 'utf8');

interface Page {
  html: string;
  tags: { attrs: Record<string, string> }[];
}
const transformed = (address?: string, source?: string): Page => {
  const { transformIndexHtml } = publicAddresses(address, source);
  return (transformIndexHtml as unknown as (page: string) => Page)(html);
};

describe('public addresses', () => {
  it('are left out where they are not known', () => {
    const page = transformed();
    expect(page.tags).toEqual([]);
    expect(page.html).toMatch('content="./card.png"');
    expect(page.html).not.toMatch(/canonical|Source code|<!-- source -->/);
  });

  it('are absolute where they are known', () => {
    const page = transformed('https://example.org/attention', 'https://example.org/code?a=1&b=2');
    expect(page.html).toMatch('property="og:image" content="https://example.org/attention/card.png"');
    expect(page.html).toMatch('<a href="https://example.org/code?a=1&amp;b=2">Source code</a>');
    expect(page.tags.map(({ attrs }) => attrs['href'] ?? attrs['content'])).toEqual([
      'https://example.org/attention/',
      'https://example.org/attention/',
    ]);
  });

  it('are refused if they are not addresses', () => {
    expect(() => transformed('example')).toThrow(/Invalid URL/);
  });
});

describe('early requests', () => {
  it('are for the first script, all that it imports, and the worker', () => {
    const chunk = (imports: string[] = []) => ({ type: 'chunk', imports });
    const bundle = {
      'assets/boot-1.js': chunk(['assets/a-1.js', 'assets/b-1.js']),
      'assets/a-1.js': chunk(['assets/b-1.js']),
      'assets/b-1.js': chunk(),
      'assets/index-1.js': chunk(['assets/c-1.js']),
      'assets/c-1.js': chunk(),
      'assets/attention_worker-1.js': { type: 'asset' },
    };
    const { handler } = earlyRequests.transformIndexHtml as unknown as { handler(html: string, context: object): Page['tags'] };
    expect(handler('', { bundle }).map(({ attrs }) => attrs['src'] ?? attrs['href'])).toEqual([
      './assets/boot-1.js',
      './assets/attention_worker-1.js',
      './assets/a-1.js',
      './assets/b-1.js',
    ]);
  });
});

describe('the offline copy', () => {
  type Bundle = Record<string, { type: string; code?: string; source?: string; imports?: string[] }>;
  const ofModels = ['models', 'formats', 'generation', 'gpu', 'inspection', 'pooling', 'quantized', 'team'];
  const bundle = (page = '<p>'): Bundle => ({
    'index.html': { type: 'asset', source: page },
    'service_worker.js': { type: 'chunk', code: 'const {files}=e.__BUILD__;', imports: [] },
    'assets/index-1.js': { type: 'chunk', code: 'main' },
    'assets/lazy-1.js.map': { type: 'asset', source: '{}' },
    'assets/peer_onnxruntime-1.js': { type: 'chunk', code: 'peer' },
    'assets/tokenizers-1.js': { type: 'chunk', code: 'tokenizers' },
    'assets/model_worker-1.js': { type: 'chunk', code: 'model' },
    'assets/model_gpu-1.js': { type: 'chunk', code: 'kernels' },
    'assets/gpu-1.js': { type: 'chunk', code: 'gpu' },
    'assets/multihead-analyses-relaxed-1.wasm': { type: 'asset', source: 'a' },
    ...Object.fromEntries(
      ofModels.flatMap((part) => ['relaxed', 'simd128'].map((simd) => [`assets/multihead-${part}-${simd}-1.wasm`, { type: 'asset', source: part }])),
    ),
    'assets/multihead-relaxed-1.wasm': { type: 'asset', source: 'r' },
    'assets/multihead-simd128-1.wasm': { type: 'asset', source: 's' },
  });
  const listed = (made: Bundle) => {
    (offlineCopy.generateBundle as (options: object, files: Bundle) => void)({}, made);
    return JSON.parse(/=(\{.*\});/.exec(made['service_worker.js']!.code!)![1]!);
  };

  it('has what every visitor needs, and of the WebAssembly the build that the page asks for', () => {
    const { main, files, models, later, wasm } = listed(bundle());
    expect(main).toBe('assets/index-1.js');
    expect(files).toEqual(['assets/index-1.js', 'favicon.svg', 'touch-icon.png']);
    const english = ['config.json', 'heads.json', 'model.safetensors', 'tokenizer.json'].map((name) => `english/${name}`);
    expect(later).toEqual(['assets/multihead-analyses-relaxed-1.wasm', ...english]);
    expect(models).toEqual(['assets/model_gpu-1.js', 'assets/model_worker-1.js', 'assets/tokenizers-1.js']);
    expect(wasm).toEqual({
      relaxed: { page: 'assets/multihead-relaxed-1.wasm', models: ofModels.map((part) => `assets/multihead-${part}-relaxed-1.wasm`) },
      simd128: { page: 'assets/multihead-simd128-1.wasm', models: ofModels.map((part) => `assets/multihead-${part}-simd128-1.wasm`) },
    });
  });

  it('has another version when any file changes, and the same when none does', () => {
    expect(listed(bundle()).version).toBe(listed(bundle()).version);
    expect(listed(bundle('<b>')).version).not.toBe(listed(bundle()).version);
  });

  it('is refused if the service worker would have to import a script', () => {
    const made = bundle();
    made['service_worker.js']!.imports = ['assets/shared.js'];
    expect(() => listed(made)).toThrow(/cannot import/);
  });
});
