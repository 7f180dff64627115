// Runs a folder of golden cases through the built package in WebAssembly.
//
//   npm run conformance -- [DIR] [--simd=simd128|relaxed|both]
//
// DIR holds pairs NAME.json and NAME.safetensors, tests/conformance when not given; its README
// defines the operations. What is not supported yet counts as failed, never as skipped.

import { spawnSync } from 'node:child_process';
import { readdir, readFile } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const script = fileURLToPath(import.meta.url);
const relaxedFlag = '--experimental-wasm-relaxed-simd';

class NotSupported extends Error {
  constructor(what) {
    super(`not supported yet: ${what}`);
  }
}

// ---- Reading ----

const arrayOf = { F32: Float32Array, I32: Int32Array, BOOL: Uint8Array };

/** Every tensor of a safetensors file, by name: { dtype, shape, data }. */
async function readSafetensors(path) {
  const file = await readFile(path);
  const headerBytes = Number(file.readBigUInt64LE(0));
  const start = 8 + headerBytes;
  const header = JSON.parse(file.toString('utf8', 8, start));
  const tensors = new Map();
  for (const [name, entry] of Object.entries(header)) {
    if (name === '__metadata__') continue;
    const array = arrayOf[entry.dtype];
    if (array === undefined) continue;
    const [begin, end] = entry.data_offsets;
    // A copy, because a Buffer may lie at any address.
    const bytes = Uint8Array.from(file.subarray(start + begin, start + end));
    tensors.set(name, { dtype: entry.dtype, shape: entry.shape, data: new array(bytes.buffer) });
  }
  return tensors;
}

/** The arguments of a case as `table` ({ argument: tensor name }) names them. */
function pick(table, tensors) {
  return Object.fromEntries(
    Object.entries(table).map(([argument, name]) => {
      const tensor = tensors.get(name);
      if (tensor === undefined) throw new Error(`tensor ${name} is not in the file`);
      return [argument, tensor];
    }),
  );
}

// ---- Comparing ----

/** What is wrong with `actual`, in words, or undefined. */
function difference(name, actual, golden, { atol, rtol }) {
  if (actual === undefined) return `${name} was not computed`;
  if (actual.shape.join() !== golden.shape.join()) {
    return `${name} has shape (${actual.shape}), expected (${golden.shape})`;
  }
  let worst = 0;
  let text;
  for (let i = 0; i < golden.data.length; i += 1) {
    const r = actual.data[i];
    const g = golden.data[i];
    if (r === g) continue;
    const excess =
      Number.isFinite(g) && Number.isFinite(r)
        ? Math.abs(r - g) / (atol + rtol * Math.abs(g))
        : Infinity;
    if (excess > 1 && excess > worst) {
      worst = excess;
      text = `${name}[${i}] is ${r}, expected ${g} (${excess.toPrecision(3)} times the tolerance)`;
    }
  }
  return text;
}

/** Rows of printed figures agree to a bit more than half a unit of their last decimal. */
function differenceFromPrinted(weights, printed, attrs) {
  const width = printed.shape.at(-1);
  const rows = printed.shape.at(-2);
  const unit = 10 ** -attrs.printed_decimals;
  for (let i = 0; i < printed.data.length; i += 1) {
    const row = Math.floor(i / width) % rows;
    if (attrs.printed_rows_wrong?.includes(row)) continue;
    const error = Math.abs(weights.data[i] - printed.data[i]);
    if (!(error <= 0.51 * unit + 1e-6)) {
      return `weights[${i}] is ${weights.data[i]}, printed as ${printed.data[i]}`;
    }
  }
  return undefined;
}

// ---- Operations: (mh, attrs, inputs, wanted outputs) → { output name: { shape, data } } ----

const product = (extents) => extents.reduce((a, b) => a * b, 1);
const float = ({ shape, data }) => ({ shape, data });

/** (N_q, N_k) stays; any other shape is aligned at its end with (B, H, N_q, N_k). */
function maskLike({ shape, data }) {
  if (shape.length === 2 || shape.length === 4) return { shape, data };
  return { shape: [...Array(4 - shape.length).fill(1), ...shape], data };
}

function causalOf(attrs) {
  if (!attrs.causal) return false;
  if (attrs.align === 'top_left') return 'topLeft';
  if (attrs.align === 'bottom_right') return 'bottomRight';
  if (attrs.align === 'explicit') return { offset: attrs.offset };
  throw new NotSupported(`align ${attrs.align}`);
}

const knownAttentionAttrs = new Set(
  'causal align offset scale enable_gqa window_left window_right softcap alibi mask_kind rope'.split(
    ' ',
  ),
);

function attention(mh, attrs, inputs, wanted) {
  if (attrs.rope) throw new NotSupported('rope');
  if (attrs.softcap) throw new NotSupported('softcap');
  if (attrs.alibi) throw new NotSupported('alibi');
  if (attrs.window_left >= 0 || attrs.window_right >= 0) throw new NotSupported('window');
  const { q, k, v, mask, ...rest } = inputs;
  const [other] = [
    ...Object.keys(rest),
    ...Object.keys(attrs).filter((name) => !knownAttentionAttrs.has(name)),
  ];
  if (other !== undefined) throw new NotSupported(other);

  const unknown = wanted.find((name) => !['out', 'lse', 'weights'].includes(name));
  if (unknown !== undefined) throw new NotSupported(`output ${unknown}`);

  const options = { causal: causalOf(attrs), return: wanted.filter((name) => name !== 'out') };
  if (attrs.scale !== null && attrs.scale !== undefined) options.scale = attrs.scale;
  if (mask !== undefined) options[mask.dtype === 'BOOL' ? 'mask' : 'bias'] = maskLike(mask);
  return mh.attention(float(q), float(k), float(v), options);
}

/** Queries and keys are zero, and the scores come in as the bias: 0 + bias is the score, exactly. */
function softmaxMasked(mh, attrs, { scores }) {
  const [n, m] = scores.shape.slice(-2);
  const matrices = product(scores.shape.slice(0, -2));
  const zeros = (length) => ({
    shape: [1, matrices, length, 1],
    data: new Float32Array(matrices * length),
  });
  const { weights, lse } = mh.attention(zeros(n), zeros(m), zeros(m), {
    bias: { shape: [1, matrices, n, m], data: scores.data },
    causal: causalOf(attrs),
    return: ['weights', 'lse'],
  });
  return {
    weights: { shape: scores.shape, data: weights.data },
    lse: { shape: scores.shape.slice(0, -1), data: lse.data },
  };
}

/** (rows, columns) → (columns, rows), for each matrix of a stack; the stack becomes one matrix. */
function transpose({ shape, data }) {
  const [rows, columns] = shape.slice(-2);
  const stack = product(shape.slice(0, -2));
  const result = new Float32Array(data.length);
  for (let s = 0; s < stack; s += 1) {
    const at = s * rows * columns;
    for (let r = 0; r < rows; r += 1) {
      for (let c = 0; c < columns; c += 1) result[at + c * rows + r] = data[at + r * columns + c];
    }
  }
  return { shape: [stack * columns, rows], data: result };
}

/** Forward pass of a layer; `unbatched` x is (N, E). */
function forwardLayer(mh, config, x, causal) {
  const unbatched = x.shape.length === 2;
  const layer = mh.multiHeadAttention(config);
  const batched = { data: x.data, shape: unbatched ? [1, ...x.shape] : x.shape };
  const { output, trace } = layer.forward(batched, { causal, trace: ['weights'] });
  const drop = ({ shape, data }) => ({ shape: unbatched ? shape.slice(1) : shape, data });
  return { out: drop(output), weights: drop(trace.weights) };
}

function headsConcat(mh, attrs, { x, w_q, w_k, w_v, w_o, ...rest }) {
  const [other] = Object.keys(rest);
  if (other !== undefined) throw new NotSupported(other);
  const [numHeads, embedDim, headDim] = w_q.shape;
  const weights = { qProj: transpose(w_q), kProj: transpose(w_k), vProj: transpose(w_v) };
  if (w_o !== undefined) weights.outProj = transpose(w_o);
  const config = { embedDim, numHeads, headDim, weights };
  return forwardLayer(mh, config, x, attrs.causal ? 'topLeft' : false);
}

/** (L, B, E) ↔ (B, L, E). */
function swapFirstTwo({ shape, data }) {
  const [first, second, width] = shape;
  const result = new Float32Array(data.length);
  for (let a = 0; a < first; a += 1) {
    for (let b = 0; b < second; b += 1) {
      const row = data.subarray((a * second + b) * width, (a * second + b + 1) * width);
      result.set(row, (b * first + a) * width);
    }
  }
  return { shape: [second, first, width], data: result };
}

function averageHeads({ shape, data }) {
  const heads = shape.at(-3);
  const plane = shape.at(-2) * shape.at(-1);
  const outer = product(shape.slice(0, -3));
  const mean = new Float32Array(outer * plane);
  for (let o = 0; o < outer; o += 1) {
    for (let i = 0; i < plane; i += 1) {
      let sum = 0;
      for (let h = 0; h < heads; h += 1) sum += data[(o * heads + h) * plane + i];
      mean[o * plane + i] = sum / heads;
    }
  }
  return { shape: [...shape.slice(0, -3), ...shape.slice(-2)], data: mean };
}

function multiheadAttention(mh, attrs, inputs) {
  if (!attrs.self_attention) throw new NotSupported('cross attention in the module');
  if (attrs.kdim !== null || attrs.vdim !== null) throw new NotSupported('kdim, vdim');
  if (attrs.add_bias_kv) throw new NotSupported('add_bias_kv');
  if (attrs.add_zero_attn) throw new NotSupported('add_zero_attn');
  const {
    query,
    in_proj_weight: inWeight,
    in_proj_bias: inBias,
    'out_proj.weight': outWeight,
    'out_proj.bias': outBias,
    ...rest
  } = inputs;
  const [other] = Object.keys(rest);
  if (other !== undefined) throw new NotSupported(`${other} in the module`);

  const width = attrs.embed_dim;
  const rows = (tensor, part, shape) => ({
    shape,
    data: tensor.data.subarray(part * product(shape), (part + 1) * product(shape)),
  });
  const weights = {
    qProj: rows(inWeight, 0, [width, width]),
    kProj: rows(inWeight, 1, [width, width]),
    vProj: rows(inWeight, 2, [width, width]),
    outProj: float(outWeight),
  };
  if (inBias !== undefined) {
    weights.qBias = rows(inBias, 0, [width]);
    weights.kBias = rows(inBias, 1, [width]);
    weights.vBias = rows(inBias, 2, [width]);
  }
  if (outBias !== undefined) weights.outBias = float(outBias);

  const sequenceFirst = !attrs.batch_first && !attrs.unbatched;
  const x = sequenceFirst ? swapFirstTwo(query) : query;
  const config = { embedDim: width, numHeads: attrs.num_heads, weights };
  const result = forwardLayer(mh, config, x, attrs.is_causal ? 'topLeft' : false);
  return {
    out: sequenceFirst ? swapFirstTwo(result.out) : result.out,
    weights: attrs.average_attn_weights ? averageHeads(result.weights) : result.weights,
  };
}

const operations = {
  attention,
  softmax_masked: softmaxMasked,
  heads_concat: headsConcat,
  multihead_attention: multiheadAttention,
};

// ---- Running ----

/** Why a case fails, or undefined. */
function runCase(mh, entry, tensors) {
  const operation = operations[entry.op];
  if (operation === undefined) throw new NotSupported(`op ${entry.op}`);
  const inputs = pick(entry.inputs, tensors);
  const goldens = pick(entry.outputs, tensors);
  const names = Object.keys(goldens);

  return mh.scope(() => {
    const actual = operation(mh, entry.attrs, inputs, names);
    for (const name of names) {
      const tolerance = entry.output_tolerance?.[name] ?? entry.tolerance;
      const reason = difference(name, actual[name], goldens[name], tolerance);
      if (reason !== undefined) return reason;
    }
    return inputs.printed_weights === undefined
      ? undefined
      : differenceFromPrinted(actual.weights, inputs.printed_weights, entry.attrs);
  });
}

async function runBuild(load, folder, simd) {
  const mh = await load({ simd });
  const manifests = (await readdir(folder)).filter((name) => name.endsWith('.json')).sort();
  const count = { passed: 0, failed: 0 };
  for (const manifest of manifests) {
    const { file, cases } = JSON.parse(await readFile(join(folder, manifest), 'utf8'));
    if (!Array.isArray(cases)) continue;
    const tensors = await readSafetensors(join(folder, file));
    for (const entry of cases) {
      let reason;
      try {
        reason = runCase(mh, entry, tensors);
      } catch (error) {
        reason = error.message;
      }
      count[reason === undefined ? 'passed' : 'failed'] += 1;
      const name = `${manifest.replace(/\.json$/, '')}/${entry.name}`;
      if (reason !== undefined) console.log(`FAIL ${name}: ${reason} [${simd}]`);
    }
  }
  if (count.passed + count.failed === 0) throw new Error(`there are no cases in ${folder}`);
  console.log(`${simd}: ${count.passed} passed, ${count.failed} failed`);
  return count;
}

async function main() {
  const { values, positionals } = parseArgs({
    options: { simd: { type: 'string', default: 'both' } },
    allowPositionals: true,
  });
  const { simd } = values;
  if (!['simd128', 'relaxed', 'both'].includes(simd) || positionals.length > 1) {
    throw new Error('usage: npm run conformance -- [DIR] [--simd=simd128|relaxed|both]');
  }
  const folder = resolve(positionals[0] ?? join(dirname(script), '..', 'tests', 'conformance'));

  const { load } = await import('./dist/index.js').catch((cause) => {
    throw new Error('the package is not built; run `npm run build` first', { cause });
  });
  const { chooseSimd } = await import('./dist/features.js');
  const hasRelaxed = chooseSimd('auto').simd === 'relaxed';
  if (!hasRelaxed && simd !== 'simd128' && Number(process.versions.node.split('.')[0]) < 22) {
    if (!process.execArgv.includes(relaxedFlag)) {
      const again = [...process.execArgv, relaxedFlag, script, ...process.argv.slice(2)];
      return spawnSync(process.execPath, again, { stdio: 'inherit' }).status ?? 1;
    }
  }
  const builds = simd === 'both' ? ['simd128', ...(hasRelaxed ? ['relaxed'] : [])] : [simd];

  let passed = 0;
  let failed = 0;
  for (const build of builds) {
    const count = await runBuild(load, folder, build);
    passed += count.passed;
    failed += count.failed;
  }
  console.log(`${passed} passed, ${failed} failed`);
  return failed === 0 ? 0 : 1;
}

try {
  process.exitCode = await main();
} catch (error) {
  console.error(error.message);
  process.exitCode = 2;
}
