// The benchmark cases, with the names of multihead-bench. native/bench/cases.cc has the same list, and a test compares
// the two. Missing here: (B, N, H, d) layouts, because the package takes only row-major tensors; packed sequences,
// which measure threads; and bf16 products, which WebAssembly lacks.

const shape = (name, batch, heads, numKvHeads, queries, keys, width) => ({
  name,
  batch,
  heads,
  numKvHeads,
  queries,
  keys,
  width,
});

const tiny = shape('tiny', 1, 4, 4, 32, 32, 16);
const gpt2 = shape('gpt2-1k', 1, 12, 12, 1024, 1024, 64);
const blocks = shape('gpt2-1152', 1, 12, 12, 1152, 1152, 64);
const bert = shape('bert', 8, 12, 12, 128, 128, 64);
const vit = shape('vit', 8, 12, 12, 197, 197, 64);
/** One sequence, which fits in cache; batches of 8 exceed the caches of many machines. */
const bertOne = shape('bert-b1', 1, 12, 12, 128, 128, 64);
const vitOne = shape('vit-b1', 1, 12, 12, 197, 197, 64);
/** A single head: threads can only divide its rows. */
const head = shape('head-1k', 1, 1, 1, 1024, 1024, 64);
const llama3 = shape('llama3-2k', 1, 32, 8, 2048, 2048, 128);
const long = shape('long-8k', 1, 4, 4, 8192, 8192, 64);
/** A single head of many keys: several threads divide its keys. */
const longHead = shape('head-8k', 1, 1, 1, 8192, 8192, 64);
const gpt2Decode = shape('gpt2-kv1k', 1, 12, 12, 1, 1024, 64);
const llama3Decode = [
  shape('llama3-kv512', 1, 32, 8, 1, 512, 128),
  shape('llama3-kv2k', 1, 32, 8, 1, 2048, 128),
  shape('llama3-kv8k', 1, 32, 8, 1, 8192, 128),
  shape('llama3-kv32k', 1, 32, 8, 1, 32768, 128),
];
/** A decode step of 16 sequences. */
const llama3Token = shape('llama3-b16-kv1', 16, 32, 8, 1, 1, 128);
/** d_model 768: x is (1, 512, 768). */
const mha = shape('mha-768', 1, 12, 12, 512, 512, 64);
/** The attention of each of GPT-2's 12 layers; work.mjs defines the rest of the model. */
const gpt2Small = shape('gpt2-small', 1, 12, 12, 1, 1024, 64);
/** The models of the two experiments; work.mjs defines the rest of them. */
const train = [
  shape('four-jobs', 16, 4, 4, 32, 32, 16),
  shape('induction', 32, 2, 2, 32, 32, 16),
];
/** Rows × inputs × outputs: a projection of mha-768, and one token's q, k and v projections in one product. */
const gemm = [shape('512x768x768', 1, 1, 1, 512, 768, 768), shape('1x768x2304', 1, 1, 1, 1, 2304, 768)];

const make = (op, of, mask = 'full', dtype = 'f32') => ({
  op,
  shape: of,
  mask,
  dtype,
  name: `${op}/${of.name}/${mask}/${dtype}/threads:1`,
});

export const CASES = [
  make('forward', tiny, 'causal'),
  make('forward', tiny),
  make('forward', gpt2, 'causal'),
  make('forward', gpt2),
  make('forward', bert),
  make('forward', vit),
  make('forward', bertOne),
  make('forward', vitOne),
  make('forward', head, 'causal'),
  make('forward', llama3, 'causal'),
  make('forward', long, 'causal'),
  ...['f16', 'bf16'].flatMap((dtype) => [gpt2, llama3].map((of) => make('forward', of, 'causal', dtype))),
  ...['boolean', 'padding', 'lengths', 'window', 'bias', 'alibi', 'weights'].map((mask) => make('forward', gpt2, mask)),
  ...['full', 'blocks-1of2', 'blocks-1of3', 'blocks-1of6'].map((mask) => make('forward', blocks, mask)),
  make('backward', gpt2, 'causal'),
  make('backward', gpt2),
  make('backward', tiny, 'causal'),
  make('backward', longHead, 'causal'),
  make('decode', gpt2Decode),
  ...llama3Decode.map((of) => make('decode', of)),
  ...['f32', 'f16', 'bf16', 'int8'].map((dtype) => make('cache', llama3Decode[2], 'full', dtype)),
  make('cache', gpt2Decode, 'full', 'int8'),
  make('cache', llama3Decode[3], 'full', 'int8'),
  ...['f32', 'f16', 'bf16', 'int8'].map((dtype) => make('append', llama3Decode[0], 'full', dtype)),
  ...['f32', 'int8'].map((dtype) => make('append', llama3Token, 'full', dtype)),
  ...[gpt2, llama3Token].map((of) => make('merge', of)),
  make('module', mha),
  make('module', mha, 'weights'),
  make('step', gpt2Small),
  ...train.map((of) => make('train', of, 'causal')),
  ...gemm.map((of) => make('gemm', of)),
];

export const isCausal = (mask) => ['causal', 'window', 'alibi'].includes(mask);

/** The cases whose names match, in the order of the list. */
export function chosenCases(filter) {
  const wanted = new RegExp(filter);
  return CASES.filter(({ name }) => wanted.test(name));
}

/** Returns the case of that name, for any number of threads; null if there is none. */
export function caseOf(name) {
  const atOne = name.replace(/threads:\d+$/, 'threads:1');
  return CASES.find((known) => known.name === atOne) ?? null;
}
