// Transformers and blocks compared with their definition in float64, with GPT-2's and PyTorch's names; generation token
// by token; bad arguments.

import {
  gpt2Config,
  readSafetensors,
  writeSafetensors,
  type PlainTensor,
  type Transformer,
  type TransformerBlock,
  type TransformerBlockConfig,
  type TransformerConfig,
} from 'multihead';
import { afterEach, describe, expect, it } from 'vitest';
import { builds, errorOf, expectRefused, expectWorks, loadBuild } from './builds.ts';
import { random, runSeed, type Random } from './random.ts';
import * as moduleReference from './module_reference.ts';
import { maxDifference } from './reference.ts';
import * as reference from './transformer_reference.ts';

const product = (shape: readonly number[]): number => shape.reduce((a, b) => a * b, 1);
type Dict = Record<string, PlainTensor>;

/** Random parameter: gains of norms are near 1, others near 0, so that the softmax is not one-hot. */
function parameter(pick: Random, name: string, shape: readonly number[]): PlainTensor {
  const gain = /(norm\d?|ln_[12f])\.weight$/.test(name) ? 1 : 0;
  return { shape, data: pick.floats(product(shape)).map((value) => gain + value * 0.4) };
}

/** The parameters of one block, under PyTorch's names. */
function blockShapes(config: TransformerBlock['config']): Record<string, number[]> {
  const { embedDim, numHeads, numKvHeads, headDim, valueDim, mlpDim } = config;
  const rows = numHeads * headDim + numKvHeads * (headDim + valueDim);
  const shapes: Record<string, number[]> = {
    'self_attn.in_proj_weight': [rows, embedDim],
    'self_attn.out_proj.weight': [embedDim, numHeads * valueDim],
  };
  if (config.bias) shapes['self_attn.in_proj_bias'] = [rows];
  if (config.bias) shapes['self_attn.out_proj.bias'] = [embedDim];
  if (config.sinks) shapes['self_attn.sinks'] = [numHeads];
  for (const name of config.qkNorm ? ['q_norm', 'k_norm'] : []) {
    shapes[`self_attn.${name}.weight`] = [headDim];
  }
  const norm = (name: string): void => {
    if (!config.normAffine) return;
    if (config.norm !== 'none') shapes[`${name}.weight`] = [embedDim];
    if (config.norm === 'layerNorm') shapes[`${name}.bias`] = [embedDim];
  };
  norm('norm1');
  if (mlpDim === undefined) return shapes;
  norm('norm2');
  for (const name of ['linear1', 'linear2', ...(config.gated ? ['linear_gate'] : [])]) {
    const out = name === 'linear2' ? embedDim : mlpDim;
    shapes[`${name}.weight`] = [out, name === 'linear2' ? mlpDim : embedDim];
    if (config.mlpBias) shapes[`${name}.bias`] = [out];
  }
  return shapes;
}

function modelShapes(config: Transformer['config']): Record<string, number[]> {
  const { embedDim, numLayers, vocabSize, maxPositions, numReadouts } = config;
  const norm = config.normAffine ? config.norm : 'none';
  const shapes: Record<string, number[]> = { 'embedding.weight': [vocabSize, embedDim] };
  if (maxPositions !== undefined) shapes['position.weight'] = [maxPositions, embedDim];
  for (let layer = 0; layer < numLayers; layer += 1) {
    for (const [name, shape] of Object.entries(blockShapes(config))) {
      shapes[`layers.${layer}.${name}`] = shape;
    }
  }
  if (config.finalNorm && norm !== 'none') shapes['norm.weight'] = [embedDim];
  if (config.finalNorm && norm === 'layerNorm') shapes['norm.bias'] = [embedDim];
  if (!config.tiedOutput) shapes['output.weight'] = [numReadouts * vocabSize, embedDim];
  return shapes;
}

const parameters = (pick: Random, shapes: Record<string, number[]>): Dict =>
  Object.fromEntries(Object.entries(shapes).map(([name, shape]) => [name, parameter(pick, name, shape)]));

// ---- GPT-2 ----

const [layerCount, heads, width, inner, words, positions] = [2, 3, 12, 20, 11, 9];

/** Pairs of GPT-2 and PyTorch names; true if GPT-2 stores the transposed matrix. */
const gpt2Names: [string, string, boolean][] = [
  ['ln_1', 'norm1', false],
  ['attn.c_attn', 'self_attn.in_proj_', true],
  ['attn.c_proj', 'self_attn.out_proj', true],
  ['ln_2', 'norm2', false],
  ['mlp.c_fc', 'linear1', true],
  ['mlp.c_proj', 'linear2', true],
];

function transposed({ shape, data }: PlainTensor): PlainTensor {
  const [rows = 0, columns = 0] = shape;
  const turned = Float32Array.from(data, (_, i) => {
    return data[(i % rows) * columns + Math.floor(i / rows)] as number;
  });
  return { shape: [columns, rows], data: turned };
}

/**
 * A small GPT-2: one dict with GPT-2's names, including the buffers of old checkpoints, and one with PyTorch's names.
 */
function gpt2(prefix = ''): { dict: Dict; torch: Dict } {
  const pick = random(5);
  const dict: Dict = {};
  const torch: Dict = {};
  const add = (name: string, torchName: string, shape: number[], conv1d = false): void => {
    const tensor = parameter(pick, name, shape);
    dict[prefix + name] = tensor;
    torch[torchName] = conv1d && shape.length === 2 ? transposed(tensor) : tensor;
  };
  add('wte.weight', 'embedding.weight', [words, width]);
  add('wpe.weight', 'position.weight', [positions, width]);
  for (let layer = 0; layer < layerCount; layer += 1) {
    const extents: Record<string, [number, number]> = {
      'attn.c_attn': [width, 3 * width],
      'attn.c_proj': [width, width],
      'mlp.c_fc': [width, inner],
      'mlp.c_proj': [inner, width],
    };
    for (const [name, torchName, isMatrix] of gpt2Names) {
      const [rows, columns] = extents[name] ?? [0, width];
      const to = torchName.endsWith('_') ? torchName : `${torchName}.`;
      const shape = isMatrix ? [rows, columns] : [columns];
      add(`h.${layer}.${name}.weight`, `layers.${layer}.${to}weight`, shape, isMatrix);
      add(`h.${layer}.${name}.bias`, `layers.${layer}.${to}bias`, [columns]);
    }
    const mask = { shape: [1, 1, positions, positions], data: new Float32Array(positions ** 2) };
    dict[`${prefix}h.${layer}.attn.bias`] = mask;
    dict[`${prefix}h.${layer}.attn.masked_bias`] = { shape: [], data: new Float32Array(1) };
  }
  add('ln_f.weight', 'norm.weight', [width]);
  add('ln_f.bias', 'norm.bias', [width]);
  return { dict, torch };
}

const isBuffer = (name: string): boolean => /(^|\.)attn\.(masked_)?bias$/.test(name);
const tokens = Int32Array.of(3, 1, 4, 1, 5, 9, 2, 6);
const more = Int32Array.of(10, 0, 7, 7, 8, 2, 1, 0);

describe.each(builds)('transformers: %s', async (simd) => {
  const mh = await loadBuild(simd);
  afterEach(() => expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 }));

  function gpt2Model(prefix = ''): Transformer {
    const { dict } = gpt2(prefix);
    const model = mh.transformer(gpt2Config(dict, heads));
    model.loadStateDict(dict, { names: 'gpt2' });
    return model;
  }

  it('GPT-2, loaded by its own names, equals its definition', () => {
    mh.scope(() => {
      const { dict, torch } = gpt2();
      const model = gpt2Model();
      expect(model.config).toMatchObject({ numLayers: 2, mlpDim: inner, vocabSize: words });
      const { logits, hidden } = model.forward(tokens, { return: ['logits', 'hidden'] });
      const expected = reference.model(model.config, torch, tokens, 1);
      expect(logits.shape).toEqual([1, 8, words]);
      expect(maxDifference(logits.data, expected.logits.data)).toBeLessThan(2e-5);
      expect(hidden.shape).toEqual([2, 1, 8, width]);
      const layersOut = expected.hidden.flatMap(({ data }) => Array.from(data));
      expect(maxDifference(hidden.data, layersOut)).toBeLessThan(2e-5);

      // A checkpoint with lm_head, whose matrix is ignored; two sequences at once.
      const headed = { ...gpt2('transformer.').dict, 'lm_head.weight': dict['wte.weight'] as PlainTensor };
      const prefixed = mh.transformer(gpt2Config(headed, heads));
      prefixed.loadStateDict(headed, { names: 'gpt2' });
      const both = prefixed.forward(Int32Array.of(...tokens, ...more), { batch: 2 }).logits;
      expect(both.shape).toEqual([2, 8, words]);
      expect(both.data.subarray(0, 8 * words)).toEqual(logits.data);
      // Loads the parameters under PyTorch's names.
      const same = mh.transformer(gpt2Config(dict, heads));
      same.loadStateDict(torch);
      expect(same.forward(tokens).logits.data).toEqual(logits.data);
    });
  });

  it('generates one or several tokens at a time, and truncates its cache', () => {
    mh.scope(() => {
      const model = gpt2Model();
      const whole = model.forward(Int32Array.of(...tokens, ...more), { batch: 2 }).logits.data;
      const cache = model.createCache({ batch: 2, capacity: 20 });
      expect(cache).toMatchObject({ batch: 2, capacity: 20, dtype: 'f32' });
      expect(cache.length()).toBe(0);
      expect(cache.bytes).toBeGreaterThanOrEqual(2 * 2 * 2 * 20 * width * 4);
      const expectStep = (first: number, count: number): void => {
        const next = [tokens, more].flatMap((all) => [...all.subarray(first, first + count)]);
        const { logits } = model.step(Int32Array.from(next), cache);
        expect(logits.shape).toEqual([2, count, words]);
        for (const entry of [0, 1]) {
          const at = (entry * 8 + first) * words;
          const rows = logits.data.subarray(entry * count * words, (entry + 1) * count * words);
          expect(maxDifference(rows, whole.subarray(at, at + count * words))).toBeLessThan(1e-5);
        }
      };
      expectStep(0, 3);
      expectStep(3, 2);
      cache.truncate(4);
      for (let n = 4; n < 8; n += 1) expectStep(n, 1);
      expect(cache.length()).toBe(8);
      cache.truncate(0);
      expectStep(0, 8);
      // A step without logits.
      cache.truncate(0);
      const prompt = model.step(Int32Array.of(3, 1, 10, 0), cache, { return: [] });
      expect(Object.keys(prompt)).toEqual(['traces']);
      expectStep(2, 1);

      // The model has nine positions; three are used.
      const length = 'tokens';
      const many = new Int32Array(14);
      expectRefused(mh, () => model.step(many, cache), 'E_OPTION', length, 'maxPositions = 9', '10');
      expectRefused(mh, () => cache.truncate(4), 'E_OPTION', 'length', '0 to 3');
      expect(cache.length()).toBe(3);
      expectStep(3, 5);
    });
  });

  it('generates with caches of every dtype, and with a ring', () => {
    mh.scope(() => {
      const { torch } = gpt2();
      const config = { ...gpt2Config(gpt2().dict, heads), window: { left: 3 } };
      const model = mh.transformer(config);
      model.loadStateDict(torch);
      const whole = model.forward(tokens).logits.data;
      for (const dtype of ['f32', 'f16', 'bf16', 'int8'] as const) {
        for (const storage of [{}, { layout: 'ring' }, { layout: 'paged', pageSize: 4 }] as const) {
          const cache = model.createCache({ capacity: 8, dtype, ...storage });
          const rows = Array.from(tokens, (token) => [...model.step(Int32Array.of(token), cache).logits.data]).flat();
          const tolerance = { f32: 1e-5, f16: 2e-2, bf16: 1e-1, int8: 2e-1 }[dtype];
          expect(maxDifference(rows, whole), `${dtype} ${JSON.stringify(storage)}`).toBeLessThan(tolerance);
        }
      }
    });
  });

  it(`equals its definition whatever the configuration (seed ${runSeed})`, () => {
    for (let seed = runSeed; seed < runSeed + 40; seed += 1) {
      const pick = random(seed);
      const numHeads = pick.pick([1, 2, 4]);
      const mlp = pick.pick([true, true, false]);
      const flag = (): boolean => pick.next() < 0.5;
      const given: TransformerConfig = {
        embedDim: 8,
        numHeads,
        headDim: pick.pick([2, 4, 6]),
        numKvHeads: pick.pick([1, numHeads]),
        valueDim: pick.pick([2, 5]),
        bias: flag(),
        sinks: flag(),
        qkNorm: flag(),
        softcap: pick.pick([0, 2]),
        rope: pick.pick([undefined, { style: 'half' }, { style: 'interleaved', base: 100 }]),
        window: pick.pick([undefined, { left: 2 }]),
        norm: pick.pick(['none', 'layerNorm', 'rmsNorm']),
        normFirst: flag(),
        normEps: pick.pick([1e-5, 1e-2]),
        normAffine: pick.next() < 0.7,
        numLayers: pick.int(1, 3),
        vocabSize: 7,
        finalNorm: flag(),
        ...pick.pick([{ tiedOutput: true }, { numReadouts: 1 }, { numReadouts: 3 }]),
        causal: flag(),
        maxPositions: pick.pick([undefined, 6]),
        ...(mlp && {
          mlpDim: 10,
          activation: pick.pick(['relu', 'gelu', 'geluTanh', 'silu'] as const),
          gated: flag(),
          mlpBias: flag(),
        }),
      };
      const batch = pick.int(1, 2);
      const given0 = JSON.stringify(given);
      mh.scope(() => {
        const model = mh.transformer(given);
        const dict = parameters(pick, modelShapes(model.config));
        model.loadStateDict(dict);
        expect(model.stateDict()).toEqual(dict);
        const ids = Int32Array.from({ length: batch * 6 }, () => pick.int(0, 6));
        const outputs = 7 * model.config.numReadouts;
        const { logits, hidden } = model.forward(ids, { batch, return: ['logits', 'hidden'] });
        const expected = reference.model(model.config, dict, ids, batch);
        const what = `seed ${seed}: ${given0}`;
        const layersOut = expected.hidden.flatMap(({ data }) => Array.from(data));
        expect(maxDifference(hidden.data, layersOut), what).toBeLessThan(5e-5);
        expect(maxDifference(logits.data, expected.logits.data), what).toBeLessThan(5e-5);
        if (!model.config.causal) return;
        const cache = model.createCache({ batch, capacity: 6 });
        for (let n = 0; n < 6; n += 1) {
          const next = Int32Array.from({ length: batch }, (_, b) => ids[b * 6 + n] as number);
          const row = model.step(next, cache).logits.data;
          for (let b = 0; b < batch; b += 1) {
            const at = (b * 6 + n) * outputs;
            const whole = logits.data.subarray(at, at + outputs);
            expect(maxDifference(row.subarray(b * outputs, (b + 1) * outputs), whole), what).toBeLessThan(5e-5);
          }
        }
      });
    }
  });

  it('names every error of a state dict at once, and keeps its parameters', () => {
    mh.scope(() => {
      const { dict } = gpt2();
      const model = gpt2Model();
      const before = [...model.forward(tokens).logits.data];
      const { 'h.1.ln_1.bias': _, ...broken } = dict;
      broken['h.0.mlp.c_fc.weight'] = transposed(dict['h.0.mlp.c_fc.weight'] as PlainTensor);
      broken['h.2.ln_1.bias'] = dict['ln_f.bias'] as PlainTensor;
      const load = (): void => model.loadStateDict(broken, { names: 'gpt2' });
      const error = expectRefused(mh, load, 'E_SHAPE', 'stateDict');
      expect(error.got).toBe(
        'missing: h.1.ln_1.bias (12); unexpected: h.2.ln_1.bias; of another shape: h.0.mlp.c_fc.weight (20, 12) instead of (12, 20)',
      );
      expect([...model.forward(tokens).logits.data]).toEqual(before);
      // Load a dict with the names of the other scheme.
      const other = errorOf(() => model.loadStateDict(dict));
      expect(other.got).toMatch(/missing: embedding\.weight.* and \d+ more; unexpected: h\.0.* and \d+ more$/);
      const { 'wpe.weight': __, ...without } = dict;
      expect(errorOf(() => gpt2Config(without, heads)).message).toMatch(/a matrix wpe\.weight, got none/);
    });
  });

  it('returns its parameters unchanged, also through a file', () => {
    mh.scope(() => {
      const { dict } = gpt2();
      const model = gpt2Model();
      const kept = Object.fromEntries(Object.entries(dict).filter(([name]) => !isBuffer(name)));
      expect(model.stateDict()).toEqual(kept);
      const { logits } = model.forward(tokens);
      const again = mh.transformer(gpt2Config(kept, heads));
      const { stateDict } = readSafetensors(writeSafetensors(dict));
      again.loadStateDict(stateDict, { names: 'gpt2' });
      expect(again.forward(tokens).logits.data).toEqual(logits.data);
      const half = readSafetensors(writeSafetensors(dict, { dtype: 'f16' })).stateDict;
      again.loadStateDict(half, { names: 'gpt2' });
      const rounded = again.forward(tokens).logits.data;
      expect(rounded).not.toEqual(logits.data);
      expect(maxDifference(rounded, logits.data)).toBeLessThan(1e-2);
    });
  });

  it('traces the attention of every layer without changing the result', () => {
    mh.scope(() => {
      const { torch } = gpt2();
      const model = gpt2Model();
      const { logits } = model.forward(tokens);
      const traced = model.forward(tokens, { trace: ['x', 'weights', 'headShares'], return: ['logits', 'hidden'] });
      expect(traced.logits.data).toEqual(logits.data);
      expect(traced.traces.map((trace) => Object.keys(trace))).toEqual([
        ['x', 'weights', 'headShares'],
        ['x', 'weights', 'headShares'],
      ]);
      const config = { ...model.config, kdim: width, vdim: width, outDim: width, batchFirst: true };
      traced.traces.forEach((trace, index) => {
        const expected = moduleReference.module({
          config,
          dict: reference.under(torch, `layers.${index}.self_attn.`),
          query: trace.x,
          options: { causal: 'topLeft' },
        });
        expect(trace.weights.shape).toEqual([1, heads, 8, 8]);
        expect(maxDifference(trace.weights.data, expected.weights)).toBeLessThan(2e-6);
        const shares = trace.headShares?.data ?? [];
        expect(maxDifference(shares, expected.headShares ?? [0])).toBeLessThan(1e-5);
      });
      const every = model.forward(tokens, { trace: true, return: [] }).traces;
      expect(Object.keys(every[1] ?? {})).toContain('maskedScores');
      const cache = model.createCache({ capacity: 9 });
      model.step(tokens, cache, { return: [] });
      const step = model.step(Int32Array.of(0), cache, { trace: ['weights'] });
      expect(step.traces[1]?.weights.shape).toEqual([1, heads, 1, 9]);
    });
  });

  it('writes logits to `out`, and mutes heads in every layer', () => {
    mh.scope(() => {
      const model = gpt2Model();
      const { logits } = model.forward(tokens);
      const out = mh.zeros([1, 8, words]);
      expect(model.forward(tokens, { out }).logits).toBe(out);
      expect(out.data).toEqual(logits.data);
      const scales = new Float32Array(heads);
      const muted = model.forward(tokens, { heads: { scales } }).logits.data;
      const { torch } = gpt2();
      const zeros = { ...torch };
      for (const layer of [0, 1]) {
        const name = `layers.${layer}.self_attn.out_proj.weight`;
        zeros[name] = { shape: [width, width], data: new Float32Array(width * width) };
      }
      const expected = reference.model(model.config, zeros, tokens, 1).logits.data;
      expect(maxDifference(muted, expected)).toBeLessThan(2e-5);
    });
  });

  it('dropout of outputs, residuals and embeddings applies in training only, by the seed', () => {
    const config = { numLayers: 1, vocabSize: 5, embedDim: 8, numHeads: 2, norm: 'none' } as const;
    const ids = Int32Array.of(0, 1, 2, 3);
    mh.scope(() => {
      const logits = (change: object, options: object = {}) => {
        const model = mh.transformer({ ...config, ...change });
        model.initialize({ seed: 1 });
        return [...model.forward(ids, options).logits.data];
      };
      const plain = logits({});
      const training = { training: true, dropoutSeed: 5 };
      expect(logits({}, training)).toEqual(plain);
      for (const name of ['outDropout', 'residualDropout', 'embeddingDropout']) {
        const dropping = { [name]: 0.5 };
        expect(logits(dropping), name).toEqual(plain);
        const dropped = logits(dropping, training);
        expect(dropped, name).not.toEqual(plain);
        expect(logits(dropping, training), name).toEqual(dropped);
        expect(logits(dropping, { training: true, dropoutSeed: 6 }), name).not.toEqual(dropped);
      }
    });
  });

  it('refuses arguments that do not fit', () => {
    const config = gpt2Config(gpt2().dict, heads);
    const make = (change: object) => () => mh.transformer({ ...config, ...change });
    const wrong: [() => unknown, string, string][] = [
      [make({ numHeads: 5 }), 'numHeads', 'does not divide embedDim = 12'],
      [make({ numLayers: 0 }), 'numLayers', '≥ 1'],
      [make({ numLayers: 1e9 }), 'numLayers', '65536'],
      [make({ vocabSize: 0.5 }), 'vocabSize', 'whole number'],
      [make({ maxPositions: '9' }), 'maxPositions', 'whole number'],
      [make({ activation: 'tanh' }), 'activation', '"geluTanh"'],
      [make({ norm: 'batchNorm' }), 'norm', '"rmsNorm"'],
      [make({ normEps: -1 }), 'normEps', 'a finite number, 0 or more'],
      [make({ normEps: NaN }), 'normEps', 'a finite number, 0 or more'],
      [make({ normFirst: 1 }), 'normFirst', 'true or false'],
      [make({ gated: 'yes' }), 'gated', 'true or false'],
      [make({ mlpDim: undefined }), 'activation', 'none without mlpDim'],
      [make({ mlpDim: 2 ** 30 }), 'mlpDim', '16777216'],
      [make({ tiedOutput: null }), 'tiedOutput', 'true or false'],
      [make({ normAffine: 0 }), 'normAffine', 'true or false'],
      [make({ numReadouts: 2 }), 'numReadouts', '1 with tiedOutput, got 2'],
      [make({ numReadouts: 0 }), 'numReadouts', '≥ 1'],
      [make({ residualDropout: 1 }), 'residualDropout', '0 <= p < 1'],
      [make({ embeddingDropout: -0.1 }), 'embeddingDropout', '0 <= p < 1'],
      [make({ outDim: 12 }), 'outDim', 'a block has embedDim'],
      [make({ batchFirst: false }), 'batchFirst', 'batch-first'],
      [make({ numKvHeads: 2 }), 'numKvHeads', '3'],
      [make({ layers: 2 }), 'layers', 'numLayers'],
      [() => mh.transformer(null as never), 'transformer', 'object'],
      [() => mh.transformerBlock({ ...config } as never), 'numLayers', 'transformerBlock'],
    ];
    for (const [fn, argument, words] of wrong) expectRefused(mh, fn, 'E_OPTION', argument, words);

    const model = mh.transformer(config);
    const unready = 'call loadStateDict() or initialize() first';
    expectRefused(mh, () => model.forward(tokens), 'E_OPTION', 'transformer', unready);
    expectRefused(mh, () => model.stateDict(), 'E_OPTION', 'transformer', unready);
    const load = (dict: unknown, options?: object) => () => model.loadStateDict(dict as never, options);
    expectRefused(mh, load(null), 'E_OPTION', 'stateDict');
    expectRefused(mh, load(gpt2().dict, { names: 'gpt3' }), 'E_OPTION', 'names', '"gpt2"');
    expectRefused(mh, load(gpt2().dict, { name: 'gpt2' }), 'E_OPTION', 'name');
    const numbers = { 'embedding.weight': { shape: [1], data: [1] } };
    expectRefused(mh, load(numbers), 'E_OPTION', 'stateDict["embedding.weight"]');
    model.loadStateDict(gpt2().dict, { names: 'gpt2' });

    const forward = (ids: unknown, options?: object) => () => model.forward(ids as never, options);
    const out = mh.zeros([1, 8, words]);
    const calls: [() => unknown, 'E_OPTION' | 'E_SHAPE', string, string][] = [
      [forward([...tokens]), 'E_OPTION', 'tokens', 'Int32Array'],
      [forward(new Float32Array(2)), 'E_OPTION', 'tokens', 'Int32Array'],
      [forward(Int32Array.of(0, 11)), 'E_OPTION', 'tokens', '0 to 10'],
      [forward(Int32Array.of(-1)), 'E_OPTION', 'tokens', '-1'],
      [forward(tokens, { batch: 3 }), 'E_SHAPE', 'tokens', '3 batch entries'],
      [forward(tokens, { batch: 0 }), 'E_OPTION', 'batch', '≥ 1'],
      [forward(new Int32Array(10)), 'E_OPTION', 'tokens', 'maxPositions = 9'],
      [forward(tokens, { causal: 'topLeft' }), 'E_OPTION', 'causal', "it is the model's"],
      [forward(tokens, { heads: { skipOutProj: true } }), 'E_OPTION', 'skipOutProj', 'false in a transformer'],
      [forward(tokens, { return: ['weights'] }), 'E_OPTION', 'return', 'hidden'],
      [forward(tokens, { trace: ['nothing'] }), 'E_OPTION', 'trace', 'weights'],
      [forward(tokens, { scale: NaN }), 'E_OPTION', 'scale', 'finite'],
      [forward(tokens, { out, return: ['hidden'] }), 'E_OPTION', 'out', 'logits'],
      [forward(tokens.subarray(1), { out }), 'E_SHAPE', 'out', '(1, 7, 11)'],
    ];
    for (const [fn, code, argument, words] of calls) expectRefused(mh, fn, code, argument, words);

    const cache = model.createCache({ capacity: 4 });
    const step = (of: unknown, options?: object) => () => model.step(tokens.subarray(0, 1), of as never, options);
    const other = mh.transformer(config);
    other.loadStateDict(gpt2().dict, { names: 'gpt2' });
    const foreign = other.createCache({ capacity: 4 });
    const layer = mh.multiHeadAttention({ embedDim: 12, numHeads: 3 });
    const ofLayer = layer.createCache({ capacity: 4 });
    expectRefused(mh, step(foreign), 'E_OPTION', 'cache');
    expectRefused(mh, step(ofLayer), 'E_OPTION', 'cache', '2 layers');
    expectRefused(mh, step({}), 'E_OPTION', 'cache');
    expectRefused(mh, step(cache, { batch: 1 }), 'E_OPTION', 'batch', 'that of the cache');
    expectRefused(mh, step(cache, { causal: 'topLeft' }), 'E_OPTION', 'causal');
    expectRefused(mh, () => model.step(tokens, cache), 'E_OPTION', 'tokens', 'capacity 4');
    expect(cache.length()).toBe(0);
    const bidirectional = mh.transformer({ ...config, causal: false });
    bidirectional.loadStateDict(gpt2().dict, { names: 'gpt2' });
    const unused = bidirectional.createCache({ capacity: 4 });
    const stepBack = () => bidirectional.step(tokens, unused);
    expectRefused(mh, stepBack, 'E_OPTION', 'causal', 'a causal model');

    for (const each of [cache, foreign, ofLayer, unused, layer, other, bidirectional, model, out]) {
      each.dispose();
      each.dispose();
    }
    expect(model.disposed).toBe(true);
    for (const use of [forward(tokens), () => model.stateDict(), () => model.createCache({ capacity: 1 })]) {
      expectRefused(mh, use, 'E_DISPOSED', 'transformer', 'a model that is not disposed');
    }
    expectWorks(mh);
  });

  it('refuses 2^62 parameters, whose bytes no 64 bits count', () => {
    const side = 2 ** 20;
    const model = mh.transformer({
      ...{ embedDim: side, numHeads: side, headDim: side, bias: false, numLayers: 1, vocabSize: 1 },
    });
    expectRefused(mh, () => model.initialize(), 'E_MEMORY', 'memory', 'heap');
    model.dispose();
  });

  it('is counted in memory(), and freed', () => {
    const { dict } = gpt2();
    const before = mh.memory();
    const model = mh.transformer(gpt2Config(dict, heads));
    expect(mh.memory()).toMatchObject({ live: before.live + 1, bytes: before.bytes });
    model.loadStateDict(dict, { names: 'gpt2' });
    const kept = Object.entries(dict).filter(([name]) => !isBuffer(name));
    const floats = kept.reduce((sum, [, { data }]) => sum + data.length, 0);
    expect(mh.memory().bytes).toBe(before.bytes + 4 * floats);
    model.loadStateDict(dict, { names: 'gpt2' });
    expect(mh.memory().bytes).toBe(before.bytes + 4 * floats);
    model.dispose();
  });

  // ---- Blocks ----

  it(`blocks equal their definition, step by step too (seed ${runSeed})`, () => {
    for (let seed = runSeed; seed < runSeed + 20; seed += 1) {
      const pick = random(seed);
      const config: TransformerBlockConfig = {
        embedDim: 8,
        numHeads: 2,
        mlpDim: 12,
        activation: pick.pick(['gelu', 'silu']),
        gated: pick.next() < 0.5,
        norm: pick.pick(['layerNorm', 'rmsNorm']),
        normFirst: pick.next() < 0.5,
      };
      mh.scope(() => {
        const block = mh.transformerBlock(config);
        const dict = parameters(pick, blockShapes(block.config));
        block.loadStateDict(dict);
        expect(block.stateDict()).toEqual(dict);
        const x = { shape: [2, 5, 8], data: pick.floats(80) };
        const expected = reference.block(block.config, dict, x, true);
        const causal = 'topLeft';
        const { output, attentionOut, trace } = block.forward(x, {
          ...{ causal, return: ['attentionOut'], trace: ['weights'] },
        });
        const what = `seed ${seed}`;
        expect(maxDifference(output.data, expected.out.data), what).toBeLessThan(2e-5);
        expect(maxDifference(attentionOut.data, expected.attentionOut.data), what).toBeLessThan(2e-5);
        expect(trace.weights.shape).toEqual([2, 2, 5, 5]);
        const open = reference.block(block.config, dict, x, false).out.data;
        expect(maxDifference(block.forward(x).output.data, open), what).toBeLessThan(2e-5);

        const cache = block.createCache({ batch: 2, capacity: 5 });
        for (let n = 0; n < 5; n += 1) {
          const rows = [0, 1].flatMap((b) => [...x.data.subarray((b * 5 + n) * 8, (b * 5 + n + 1) * 8)]);
          const step = block.step({ shape: [2, 1, 8], data: Float32Array.from(rows) }, cache).output.data;
          for (const b of [0, 1]) {
            const whole = output.data.subarray((b * 5 + n) * 8, (b * 5 + n + 1) * 8);
            expect(maxDifference(step.subarray(b * 8, b * 8 + 8), whole), what).toBeLessThan(1e-5);
          }
        }
        cache.truncate(2);
        expect(cache.length()).toBe(2);
      });
    }
  });

  it('gradients of blocks are the slopes of a loss', () => {
    const changes = [{}, { normFirst: false, norm: 'rmsNorm', gated: true }, { bias: false, normAffine: false }] as const;
    for (const change of changes) {
      mh.scope(() => {
        const pick = random(3);
        const block = mh.transformerBlock({ embedDim: 8, numHeads: 2, mlpDim: 12, activation: 'silu', ...change });
        const dict = parameters(pick, blockShapes(block.config));
        block.loadStateDict(dict);
        const x = { shape: [2, 5, 8], data: pick.floats(80) };
        const dOut = { shape: x.shape, data: pick.floats(80) };
        const { dX, parameters: gradients } = block.backward(x, dOut, { causal: 'topLeft' });
        expect(Object.keys(gradients).sort()).toEqual(Object.keys(dict).sort());
        const all: Dict = { ...gradients, x: { shape: dX.shape, data: dX.data } };
        for (const [name, gradient] of Object.entries(all)) {
          const variable = name === 'x' ? x : (dict[name] as PlainTensor);
          expect(gradient.shape, name).toEqual(variable.shape);
          const direction = pick.floats(variable.data.length);
          const loss = (by: number): number => {
            const data = Float64Array.from(variable.data, (each, i) => each + by * (direction[i] as number));
            const moved = { shape: variable.shape, data: data as never };
            const { out } =
              name === 'x' ? reference.block(block.config, dict, moved, true) : reference.block(block.config, { ...dict, [name]: moved }, x, true);
            return Array.from(out.data).reduce((sum, each, i) => sum + each * (dOut.data[i] as number), 0);
          };
          const slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
          const along = direction.reduce((sum, each, i) => sum + each * (gradient.data[i] as number), 0);
          expect(Math.abs(along - slope), name).toBeLessThan(1e-4);
        }
        const wrong = { shape: [2, 5, 7], data: new Float32Array(70) };
        expectRefused(mh, () => block.backward(x, wrong), 'E_SHAPE', 'dOut');
        expectRefused(mh, () => block.backward(wrong, dOut), 'E_SHAPE', 'x');
        expectRefused(mh, () => block.backward(x, dOut, { trace: true } as object), 'E_OPTION', 'trace');
      });
    }
  });

  it('blocks load GPT-2 names, and refuse arguments that do not fit', () => {
    mh.scope(() => {
      const { dict } = gpt2();
      const config = { embedDim: width, numHeads: heads, mlpDim: inner, activation: 'geluTanh' } as const;
      const block = mh.transformerBlock(config);
      block.loadStateDict(reference.under(dict, 'h.0.'), { names: 'gpt2' });
      expect(block.stateDict()['attn.c_attn.weight']).toEqual(dict['h.0.attn.c_attn.weight']);
      const x = { shape: [1, 4, width], data: random(1).floats(4 * width) };
      const expected = reference.block(block.config, reference.under(gpt2().torch, 'layers.0.'), x, true);
      const { output } = block.forward(x, { causal: 'topLeft' });
      expect(maxDifference(output.data, expected.out.data)).toBeLessThan(2e-5);

      const flat = { shape: [4, width], data: x.data };
      expectRefused(mh, () => block.forward(flat), 'E_SHAPE', 'x', '(B, N, embedDim)');
      const narrow = { shape: [1, 4, 6], data: x.data.slice(0, 24) };
      expectRefused(mh, () => block.forward(narrow), 'E_SHAPE', 'x', '12');
      expectRefused(mh, () => block.forward(x, { return: ['weights' as never] }), 'E_OPTION', 'return');
      const cache = mh.transformerBlock(config).createCache({ capacity: 4 });
      expectRefused(mh, () => block.step(x, cache), 'E_OPTION', 'cache');
      const model = gpt2Model();
      const ofModel = model.createCache({ capacity: 4 });
      expectRefused(mh, () => block.step(x, ofModel), 'E_OPTION', 'cache');
      block.dispose();
      expectRefused(mh, () => block.forward(x), 'E_DISPOSED', 'transformerBlock');
    });
  });
});

describe('gpt2Config', () => {
  const matrix = (...shape: number[]) => ({ shape, data: new Float32Array(0) });
  const dict = {
    'wte.weight': matrix(50, 12),
    'wpe.weight': matrix(32, 12),
    'h.0.mlp.c_fc.weight': matrix(12, 48),
  };

  it.each<[string, unknown, string, string]>([
    ['null', null, 'E_OPTION', 'stateDict'],
    ['a number', 3, 'E_OPTION', 'stateDict'],
    ['an array', [], 'E_OPTION', 'stateDict'],
    ['null for a matrix', { ...dict, 'wpe.weight': null }, 'E_SHAPE', 'stateDict'],
    ['text for a matrix', { ...dict, 'wpe.weight': 'x' }, 'E_SHAPE', 'stateDict'],
    ['no shape', { ...dict, 'wpe.weight': {} }, 'E_SHAPE', 'stateDict'],
    ['a shape of text', { ...dict, 'wpe.weight': { shape: 'ab' } }, 'E_SHAPE', 'stateDict'],
    ['extents of text', { ...dict, 'wte.weight': { shape: ['a', 'b'] } }, 'E_SHAPE', 'wte.weight'],
  ])('refuses %s', (_, given, code, argument) => {
    expect(gpt2Config(dict, 3)).toMatchObject({ vocabSize: 50, embedDim: 12, mlpDim: 48 });
    expect(errorOf(() => gpt2Config(given as never, 3))).toMatchObject({ code, argument });
  });

  it('refuses a number of heads that is none', () => {
    for (const numHeads of [0, -1, 1.5, NaN, '3', null, undefined, {}]) {
      const error = errorOf(() => gpt2Config(dict, numHeads as never));
      expect(error).toMatchObject({ code: 'E_OPTION', argument: 'numHeads' });
    }
  });
});
