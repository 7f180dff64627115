// The command line of `npm run bench`.
import { parseArgs } from 'node:util';
import { UsageError } from '../console.mjs';

export const WHERE = ['native', 'wasm', 'browser', 'page'];

const OPTIONS = {
  filter: { type: 'string', default: '' },
  peers: { type: 'boolean', default: false },
  json: { type: 'string' },
  chart: { type: 'string' },
  markdown: { type: 'boolean', default: false },
  target: { type: 'string' },
  simd: { type: 'string', default: 'both' },
  node: { type: 'string' },
  workers: { type: 'string' },
  browser: { type: 'string', default: 'both' },
  from: { type: 'string', multiple: true },
  build: { type: 'boolean', default: true },
  help: { type: 'boolean', default: false },
};

export const HELP = `npm run bench -- [native|wasm|browser|page …] [options]; native and wasm when none is named

  page              what a visitor of the page waits for; printed only

  --filter REGEX    benchmarks whose names match; names are op/shape/mask/dtype/threads:N
  --peers           also ONNX Runtime (native), onnxruntime-web and TensorFlow.js (wasm), in turns with ours;
                    installed into build/peers (half a gigabyte) the first time
  --json FILE       the results as JSON
  --chart FILE.svg  the results as bars
  --markdown        the results as tables to paste
  --target NAME     native: the SIMD target, for example avx2 or avx512
  --simd BUILD      wasm, browser: relaxed, simd128 or both
  --node PATH       wasm: another Node than this one
  --workers 1,2     wasm: pools of so many workers instead of one thread, in turns; with --peers also
                    onnxruntime-web with as many threads
  --browser NAME    browser, page: chromium, firefox or both
  --from FILE       no run: the results of an earlier --json (may be repeated)
  --no-build        no set-up and no build: what is there`;

const oneOf = (name, value, choices) => {
  if (!choices.includes(value)) throw new UsageError(`--${name}: expected ${choices.join(', ')}; got ${value}`);
};

function parsed(args) {
  try {
    // From Node 22 on, --no-build is built in; Node 20 has no negative options.
    const withoutBuild = args.includes('--no-build');
    const rest = args.filter((arg) => arg !== '--no-build');
    const { values, positionals } = parseArgs({ args: rest, options: OPTIONS, allowPositionals: true });
    return { values: { ...values, build: values.build && !withoutBuild }, positionals };
  } catch (error) {
    // Node's message is "Unknown option '--x'. To specify …": keep its first sentence.
    if (!error.code?.startsWith('ERR_PARSE_ARGS')) throw error;
    const expected = Object.keys(OPTIONS).map((name) => `--${name}`);
    throw new UsageError(`${error.message.split('. ', 1)[0]}; expected ${WHERE.join(', ')} or ${expected.join(', ')}`, HELP);
  }
}

/** @param {string[]} args @returns the options, with `where`: the requested runs */
export function readArguments(args) {
  const { values, positionals } = parsed(args);
  for (const name of positionals) {
    if (!WHERE.includes(name)) throw new UsageError(`Expected ${WHERE.join(', ')}; got ${name}`, HELP);
  }
  oneOf('simd', values.simd, ['relaxed', 'simd128', 'both']);
  oneOf('browser', values.browser, ['chromium', 'firefox', 'both']);
  if (values.chart && !values.chart.endsWith('.svg')) throw new UsageError(`--chart: expected a name that ends in .svg; got ${values.chart}`);
  if (values.workers && !/^[1-9]\d?(,[1-9]\d?)*$/.test(values.workers))
    throw new UsageError(`--workers: expected numbers such as 1,2; got ${values.workers}`);
  try {
    new RegExp(values.filter);
  } catch (error) {
    throw new UsageError(`--filter: expected a regular expression; got ${values.filter} (${error.message})`);
  }
  return { ...values, where: positionals.length ? positionals : ['native', 'wasm'] };
}
