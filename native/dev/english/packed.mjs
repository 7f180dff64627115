// The weights of the words model, rounded to a few levels a row, and the text file that holds them.

/** A weight of a row is one of −LEVELS … LEVELS times the row's scale. */
const LEVELS = 2;
/** In mean sizes of a row's weights. For normally distributed weights 1.05 has the smallest error; with 1.2 the file is a tenth smaller. */
const STEP = 1.2;
/** Scales are powers of 2^(1/4), so that one character holds one. */
const FINENESS = 4;

/** The exponent of a row's scale, and its whole numbers. */
function roundRow(row) {
  const size = row.reduce((sum, weight) => sum + Math.abs(weight), 0) / row.length;
  const exponent = Math.max(-90, Math.min(0, Math.round(FINENESS * Math.log2(Math.max(size * STEP, 1e-9)))));
  const scale = 2 ** (exponent / FINENESS);
  return { exponent, scale, levels: Array.from(row, (weight) => Math.max(-LEVELS, Math.min(LEVELS, Math.round(weight / scale)))) };
}

const isMatrix = ({ shape }) => shape.length === 2;

/** The tensors of a model with all matrices rounded. */
function rounded(dict) {
  const make = ({ data, shape }) => {
    const columns = shape[1];
    const result = new Float32Array(data.length);
    for (let at = 0; at < data.length; at += columns) {
      const { scale, levels } = roundRow(data.subarray(at, at + columns));
      result.set(
        levels.map((level) => level * scale),
        at,
      );
    }
    return { data: result, shape };
  };
  return Object.fromEntries(Object.entries(dict).map(([name, tensor]) => [name, isMatrix(tensor) ? make(tensor) : tensor]));
}

/**
 * Trains weights that are rounded (arXiv:1308.3432, "straight through"): a step sees the rounded weights, and its change is
 * added to the exact ones.
 */
export function rounder(model, trainer) {
  let exact;
  const see = () => {
    exact ??= model.stateDict();
    const seen = rounded(exact);
    trainer.loadStateDict({ ...trainer.stateDict(), ...seen });
    return seen;
  };
  return {
    around(update) {
      const seen = see();
      const result = update();
      const after = model.stateDict();
      for (const [name, { data }] of Object.entries(exact)) {
        const [before, now] = [seen[name].data, after[name].data];
        if (data === before) data.set(now);
        else for (let i = 0; i < data.length; i += 1) data[i] += now[i] - before[i];
      }
      return result;
    },
    /** Leaves the model with rounded weights, and returns the exact ones. */
    finish() {
      see();
      return exact;
    },
  };
}

/** The order of the tensors in the file. */
const NAMES = ['norm1.weight', 'self_attn.in_proj_weight', 'self_attn.out_proj.weight'];

/**
 * The file of a model whose exact weights are `dict`, text in four lines: its shape and texts `about` its heads as JSON; the words of its vocabulary;
 * the gains of its norms; a character for each row's exponent, below "~", and one for each pair of weights, from "#" on.
 * web/src/attention/novels.ts reads it.
 */
export function packed({ numLayers, numHeads, embedDim }, dict, words, about) {
  const all = ['embedding.weight', ...Array.from({ length: numLayers }, (_, i) => NAMES.map((name) => `layers.${i}.${name}`)).flat(), 'norm.weight'];
  const gains = all.filter((name) => !isMatrix(dict[name])).flatMap((name) => Array.from(dict[name].data, (gain) => Number(gain.toPrecision(3))));
  let exponents = '';
  let weights = '';
  for (const { data, shape } of all.map((name) => dict[name]).filter(isMatrix)) {
    for (let at = 0; at < data.length; at += shape[1]) {
      const { exponent, levels } = roundRow(data.subarray(at, at + shape[1]));
      exponents += String.fromCharCode(126 + exponent);
      for (let i = 0; i < levels.length; i += 2)
        weights += String.fromCharCode(35 + (levels[i] + LEVELS) * (2 * LEVELS + 1) + levels[i + 1] + LEVELS);
    }
  }
  return [JSON.stringify({ numLayers, numHeads, embedDim, ...about }), words.join(' '), gains.join(' '), exponents + weights, ''].join('\n');
}
