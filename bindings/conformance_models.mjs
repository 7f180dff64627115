// Golden cases of whole models: a folder with config.json, weights, cases.json and expected.safetensors, as transformers
// writes the first two, and lens_cases.json where there is one. Every case runs once for each form of the configuration that
// the folder has: config.json, read from the disk, and config_v4.json, given as a page would give its files.

import { readdir, readFile, stat } from 'node:fs/promises';
import { basename, join } from 'node:path';

import { compareNumbers, messageOf, NotSupported, pick, readJson, readTensors } from './conformance_case.mjs';
import { runLensCase } from './conformance_lens.mjs';

const isFile = (path) =>
  stat(path).then(
    (status) => status.isFile(),
    () => false,
  );
const isModelFolder = async (folder) => (await isFile(join(folder, 'cases.json'))) && isFile(join(folder, 'config.json'));

/** Folders below this one may hold models, or folders of models. */
const deepest = 2;

/** The folders of models: this one, or those inside of it. */
export async function modelFolders(folder, depth = 0) {
  if (await isModelFolder(folder)) return [folder];
  if (depth === deepest) return [];
  const entries = await readdir(folder, { withFileTypes: true });
  const inner = entries
    .filter((entry) => entry.isDirectory())
    .map(({ name }) => name)
    .sort();
  const found = await Promise.all(inner.map((name) => modelFolders(join(folder, name), depth + 1)));
  return found.flat();
}

/** The files of a folder as a page has them, with another one as config.json. */
async function filesOf(folder, config) {
  const names = (await readdir(folder, { recursive: true })).filter((name) => name.endsWith('.json') || name.endsWith('.safetensors'));
  const left = new Set(['config.json', 'cases.json', 'expected.safetensors', 'lens_cases.json', 'lens_expected.safetensors']);
  const files = names
    .filter((name) => name === config || !left.has(name))
    .map(async (name) => new File([await readFile(join(folder, name))], name === config ? 'config.json' : name));
  return Promise.all(files);
}

const sources = {
  'config.json': (folder) => folder,
  'config_v4.json': (folder) => filesOf(folder, 'config_v4.json'),
};

const compare = ({ entry, goldens }, name, got, size, indexOf) =>
  compareNumbers(name, got, goldens[name], { tolerance: entry.tolerance[name], size, indexOf });

function readInputs(
  { info },
  { input_ids: ids, attention_mask: mask, token_type_ids: types, pixel_values: pixels, decoder_input_ids: decoder, ...others },
) {
  for (const name of Object.keys(others)) throw new NotSupported(`input ${name}`);
  const main = info.takesPixels ? pixels : ids;
  return { main, mask, types: info.tokenTypes > 0 ? types : undefined, decoder, batch: main.shape[0] };
}

/** The sequence of one row: ids or pixels for the calls, and the positions whose tokens are no padding. */
function sequenceOf({ info }, { main, mask, types, batch }, row) {
  const size = main.data.length / batch;
  const part = ({ data }) => data.subarray(row * size, (row + 1) * size);
  if (info.takesPixels) {
    const positions = Array.from({ length: info.maxTokens }, (_, at) => at);
    return { input: [], options: { pixels: part(main) }, positions, padded: info.maxTokens };
  }
  const positions = Array.from({ length: size }, (_, at) => at).filter((at) => mask === undefined || part(mask)[at] !== 0);
  const select = (tensor) => positions.map((at) => part(tensor)[at]);
  const options = types === undefined ? {} : { tokenTypes: select(types) };
  return { input: select(main), options, positions, padded: size };
}

/** The number at the end of "attentions.3"; undefined for other names. */
function indexIn(name, begin, count) {
  const [, digits] = new RegExp(`^${begin}\\.(0|[1-9]\\d{0,3})$`).exec(name) ?? [];
  return Number(digits) < count ? Number(digits) : undefined;
}

/** The mean of vectors, or the first one, with length 1. */
function pooled(vectors, count, width) {
  const sum = Float64Array.from({ length: width }, (_, column) => {
    let total = 0;
    for (let row = 0; row < count; row += 1) total += vectors[row * width + column];
    return total;
  });
  const length = Math.hypot(...sum);
  return sum.map((number) => number / length);
}

async function poolerOf(model, name, { input, options }, last) {
  const isMean = name === 'mean_pooled';
  // embed() has no token types for ids, and no pixels.
  const special = options.pixels !== undefined || options.tokenTypes?.some((type) => type !== 0);
  if (special) return pooled(last.data, isMean ? last.shape[0] : 1, last.shape[1]);
  const [vector] = await model.embed([input], { pooling: isMean ? 'mean' : 'firstToken' });
  return vector;
}

/** Compares the outputs of one row of a case. */
async function checkRow(model, golden, inputs, row) {
  const { info } = model;
  const { goldens } = golden;
  const { batch } = inputs;
  const sequence = sequenceOf(model, inputs, row);
  const { input, options, positions, padded } = sequence;
  const wants = (name) => goldens[name] !== undefined;
  const { hiddenStates, lastHiddenState, logits, poolerOutput } = await model.forward(input, {
    ...options,
    return: ['hiddenStates', 'lastHiddenState', ...(wants('logits') ? ['logits'] : []), ...(wants('pooler_output') ? ['poolerOutput'] : [])],
  });
  const [states, tokens, width] = hiddenStates.shape;
  const stateOf = (index) => hiddenStates.data.subarray(index * tokens * width, (index + 1) * tokens * width);
  const byToken = (name, got) => {
    const each = got.length / tokens;
    const indexOf = (i) => (row * padded + positions[Math.floor(i / each)]) * each + (i % each);
    compare(golden, name, got, batch * padded * each, indexOf);
  };
  const bySequence = (name, got) => compare(golden, name, got, batch * got.length, (i) => row * got.length + i);

  for (const name of Object.keys(goldens)) {
    const state = indexIn(name, 'hidden_states', states);
    const layer = indexIn(name, 'attentions', info.numLayers);
    if (state !== undefined) byToken(name, stateOf(state));
    // A class of transformers with a head gives hidden states only: the last one is compared.
    else if (name === 'last_hidden_state') byToken(name, info.output === 'none' ? lastHiddenState.data : stateOf(states - 1));
    else if (name === 'pooler_output') bySequence(name, poolerOutput.data);
    else if (name === 'embeds') {
      const [vector] = info.takesPixels ? await model.embedImages([options.pixels]) : await model.embed([input]);
      bySequence(name, vector);
    } else if (name === 'mean_pooled' || name === 'cls_pooled') bySequence(name, await poolerOf(model, name, sequence, lastHiddenState));
    else if (name === 'logits' && info.output === 'classification') bySequence(name, logits.data);
    else if (name === 'logits' && info.output === 'languageModel' && goldens[name].shape[1] !== padded) {
      bySequence(name, (await model.logits(input)).data);
    } else if (name === 'logits') byToken(name, logits.data);
    else if (layer !== undefined) {
      for (let head = 0; head < info.numHeads; head += 1) {
        const { data } = await model.attentions(input, { ...options, layer, head });
        const indexOf = (i) => ((row * info.numHeads + head) * padded + positions[Math.floor(i / tokens)]) * padded + positions[i % tokens];
        compare(golden, name, data, batch * info.numHeads * padded ** 2, indexOf);
      }
    } else throw new NotSupported(`output ${name}`);
  }
}

/** Compares the outputs of one row of a case of an encoder–decoder model. */
async function checkSourceRow(model, golden, inputs, row) {
  const { batch, decoder } = inputs;
  const { input, positions, padded } = sequenceOf(model, { ...inputs, types: undefined }, row);
  const target = decoder.data.length / batch;
  const options = { decoderInput: decoder.data.slice(row * target, (row + 1) * target) };
  const of = await model.forward(input, { ...options, return: ['hiddenStates', 'lastHiddenState', 'logits', 'encoderLastHiddenState'] });
  const alone = await model.encoder.forward(input, { return: ['hiddenStates', 'lastHiddenState'] });
  if (alone.lastHiddenState.data.join() !== of.encoderLastHiddenState.data.join()) {
    throw new Error('encoder_last_hidden_state: expected the bits of the encoder by itself');
  }
  /** Rows of tokens: those of the decoder, or of the encoder, where padding is left out. */
  const byToken = (name, got, ofSource) => {
    const tokens = ofSource ? positions.length : target;
    const each = got.length / tokens;
    const [size, at] = ofSource ? [padded, (token) => positions[token]] : [target, (token) => token];
    compare(golden, name, got, batch * size * each, (i) => (row * size + at(Math.floor(i / each))) * each + (i % each));
  };
  const stateOf = ({ hiddenStates: { shape, data } }, index) => data.subarray(index * shape[1] * shape[2], (index + 1) * shape[1] * shape[2]);
  const checkMaps = async (name, info, rows, columns, read) => {
    for (let head = 0; head < info.numHeads; head += 1) {
      const { data } = await read(head);
      const size = rows * columns;
      compare(golden, name, data, batch * info.numHeads * size, (i) => (row * info.numHeads + head) * size + i);
    }
  };
  const { info } = model;
  for (const name of Object.keys(golden.goldens)) {
    const state = indexIn(name, 'hidden_states', info.numLayers);
    const sourceState = indexIn(name, 'encoder_hidden_states', info.encoder.numLayers);
    const layer = indexIn(name, 'attentions', info.numLayers);
    const cross = indexIn(name, 'cross_attentions', info.numLayers);
    const source = indexIn(name, 'encoder_attentions', info.encoder.numLayers);
    if (state !== undefined) byToken(name, stateOf(of, state), false);
    else if (sourceState !== undefined) byToken(name, stateOf(alone, sourceState), true);
    else if (name === 'last_hidden_state') byToken(name, of.lastHiddenState.data, false);
    else if (name === 'encoder_last_hidden_state') byToken(name, of.encoderLastHiddenState.data, true);
    else if (name === 'logits') byToken(name, of.logits.data, false);
    else if (layer !== undefined) await checkMaps(name, info, target, target, (head) => model.attentions(input, { ...options, layer, head }));
    else if (cross !== undefined) {
      await checkMaps(name, info, target, padded, (head) => model.crossAttentions(input, { ...options, layer: cross, head }));
    } else if (source !== undefined) {
      await checkMaps(name, info.encoder, padded, padded, (head) => model.encoder.attentions(input, { layer: source, head }));
    } else throw new NotSupported(`output ${name}`);
  }
}

async function runForward(model, golden) {
  const inputs = readInputs(model, golden.inputs);
  const check = model.info.encoder === undefined ? checkRow : checkSourceRow;
  for (let row = 0; row < inputs.batch; row += 1) await check(model, golden, inputs, row);
}

/** Options of a generation in the names of transformers. */
const optionNames = {
  max_new_tokens: 'maxNewTokens',
  forced_bos_token_id: 'forcedBos',
  forced_eos_token_id: 'forcedEos',
  suppress_tokens: 'suppress',
  begin_suppress_tokens: 'beginSuppress',
  bad_words_ids: 'badWords',
  no_repeat_ngram_size: 'noRepeatNgramSize',
  encoder_no_repeat_ngram_size: 'encoderNoRepeatNgramSize',
  min_new_tokens: 'minNewTokens',
  repetition_penalty: 'repetitionPenalty',
  num_beams: 'numBeams',
  length_penalty: 'lengthPenalty',
  early_stopping: 'earlyStopping',
};

/** Compares all tokens of a generation that the options describe. */
async function runSourceGenerate(model, { entry, inputs, goldens }) {
  const options = {};
  for (const [name, value] of Object.entries(entry.options)) {
    if (optionNames[name] === undefined) throw new NotSupported(`option ${name}`);
    options[optionNames[name]] = value;
  }
  const { ids } = await model.complete(inputs.input_ids.data, options);
  const wanted = goldens.generated_ids.data;
  if (ids.join() !== wanted.join()) throw new Error(`generated_ids: expected ${wanted.join(' ')}, got ${ids.join(' ')}`);
}

/** Compares all golden tokens: transformers went on after tokens that end a text. */
async function runGenerate(model, golden) {
  if (golden.entry.options !== undefined) return runSourceGenerate(model, golden);
  const { inputs, goldens } = golden;
  const { input_ids: prompt, ...others } = inputs;
  const { generated_ids: wanted, ...outputs } = goldens;
  for (const name of Object.keys(others)) throw new NotSupported(`input ${name}`);
  for (const name of Object.keys(outputs)) throw new NotSupported(`output ${name}`);
  const tokens = [];
  while (tokens.length < wanted.data.length) {
    const before = tokens.length;
    const options = { maxNewTokens: wanted.data.length - before };
    for await (const { token } of model.generate([...prompt.data, ...tokens], options)) tokens.push(token);
    if (tokens.length === before) break;
  }
  if (tokens.join() !== wanted.data.join()) throw new Error(`generated_ids: expected ${wanted.data.join(' ')}, got ${tokens.join(' ')}`);
}

/** Vectors of texts and images, and their similarities. */
async function runSimilarity(model, golden) {
  const { input_ids: ids, pixel_values: pixels } = golden.inputs;
  const rowsOf = ({ data, shape }) =>
    Array.from({ length: shape[0] }, (_, row) => data.slice((row * data.length) / shape[0], ((row + 1) * data.length) / shape[0]));
  const [texts, images] = [rowsOf(ids), rowsOf(pixels)];
  const flat = (vectors) => vectors.flatMap((vector) => [...vector]);
  const all = {
    text_embeds: flat(await model.embed(texts)),
    image_embeds: flat(await model.embedImages(images)),
    logits_per_image: (await model.similarity(texts, images)).data,
  };
  for (const [name, got] of Object.entries(all)) compare(golden, name, got);
}

const operations = { forward: runForward, generate: runGenerate, similarity: runSimilarity };

async function runCase(model, entry, tensors) {
  const run = operations[entry.op];
  if (run === undefined) throw new NotSupported(`op ${entry.op}`);
  const goldens = pick(entry.outputs, tensors);
  if (Object.keys(goldens).length === 0) throw new Error('outputs: nothing to compare');
  await run(model, { entry, inputs: pick(entry.inputs, tensors), goldens });
}

/**
 * Runs the cases of a folder. Calls `add` with the name of each and, if it fails, the reason.
 * @param library `readSafetensors` and `openModel` of the package
 */
export async function runModelFolder(library, folder, simd, add) {
  const name = basename(folder);
  const golden = { '': runCase, ...((await isFile(join(folder, 'lens_cases.json'))) && { lens_: runLensCase }) };
  const all = [];
  for (const [prefix, run] of Object.entries(golden)) {
    try {
      const { cases } = await readJson(join(folder, `${prefix}cases.json`));
      const tensors = await readTensors(library, join(folder, `${prefix}expected.safetensors`));
      all.push(...cases.map((entry) => ({ entry, check: (model) => run(model, entry, tensors) })));
    } catch (error) {
      add(`${name}/${prefix}cases.json`, messageOf(error));
      return;
    }
  }
  for (const [config, sourceOf] of Object.entries(sources)) {
    if (!(await isFile(join(folder, config)))) continue;
    let model;
    try {
      model = await library.openModel(await sourceOf(folder), { simd });
    } catch (error) {
      add(`${name}/${config}`, messageOf(error));
      continue;
    }
    for (const { entry, check } of all) {
      const reason = await check(model).then(() => undefined, messageOf);
      add(`${name}/${entry.name} (${config})`, reason);
    }
    model.dispose();
  }
}
