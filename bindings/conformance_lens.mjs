// Golden cases that look into a model and change what it computes: lens_cases.json and lens_expected.safetensors of a
// model's folder. One row of a batch at a time, without its padding.

import { compareNumbers, NotSupported, pick, product } from './conformance_case.mjs';

const isWeights = (site) => site === 'scores' || site === 'pattern';

/** The part of a row-major array at these places of each axis; `undefined` for all. */
function cut({ shape, data }, places) {
  const lists = shape.map((extent, axis) => places[axis] ?? Array.from({ length: extent }, (_, at) => at));
  const part = { shape: lists.map(({ length }) => length), data: new Float32Array(product(lists.map(({ length }) => length))) };
  for (let to = 0; to < part.data.length; to += 1) {
    let [rest, from, stride] = [to, 0, 1];
    for (let axis = shape.length - 1; axis >= 0; axis -= 1) {
      from += lists[axis][rest % lists[axis].length] * stride;
      rest = Math.floor(rest / lists[axis].length);
      stride *= shape[axis];
    }
    part.data[to] = data[from];
  }
  return part;
}

/** A case, its tensors, and the row of the batch that is compared. */
class LensCase {
  constructor(model, entry, tensors, row = 0) {
    Object.assign(this, { model, entry, tensors, row });
    this.goldens = pick(entry.outputs, tensors);
    this.inputs = pick(entry.inputs, tensors);
  }

  ids(name) {
    const { shape, data } = this.inputs[name];
    const all = [...data.subarray(this.row * shape[1], (this.row + 1) * shape[1])];
    const mask = this.inputs.attention_mask?.data;
    this.positions = all.map((_, at) => at).filter((at) => mask === undefined || mask[this.row * all.length + at] !== 0);
    return this.positions.map((at) => all[at]);
  }

  /** Axes of this row, without padding, of an array of a site with the axis of sequences. */
  placesOf(site, tokens = this.positions) {
    return isWeights(site) ? [[this.row], undefined, tokens, this.positions] : [[this.row], tokens];
  }

  /** A value broadcasts to the part's shape: axes of length 1, and those that it lacks, stay. */
  valueOf(name, { site, tokens, action }) {
    const value = this.tensors[name];
    const whole = action === 'replace';
    const listed = whole ? undefined : tokens?.map((token, at) => (this.positions.includes(token) ? at : -1)).filter((at) => at >= 0);
    const places = this.placesOf(site, listed ?? this.positions);
    const rank = isWeights(site) || ['q', 'k', 'v', 'z'].includes(site) ? 4 : 3;
    const own = Array.from({ length: rank }, (_, axis) => places[axis]).slice(rank - value.shape.length);
    const part = cut(
      value,
      own.map((list, axis) => (value.shape[axis] === 1 ? undefined : list)),
    );
    return part.shape.length === rank ? { shape: part.shape.slice(1), data: part.data } : part;
  }

  editsOf(edits = []) {
    return edits.flatMap((edit) => {
      const { site, layer, heads, action, value, factor } = edit;
      const tokens = edit.tokens?.filter((token) => this.positions.includes(token));
      if (tokens?.length === 0) return [];
      return [{ site, layer, heads, tokens, [action]: action === 'scale' ? factor : this.valueOf(value, edit) }];
    });
  }

  /** Throws unless all numbers are near the golden ones. `hidden`: true for numbers that do not count. */
  compare(name, got, golden = this.goldens[name], hidden = undefined) {
    compareNumbers(name, got, golden, { tolerance: this.entry.tolerance?.[name], hidden });
    this.compared = [...(this.compared ?? []), name];
  }

  compareSite(name, { site, layer }, got) {
    const golden = this.goldens[name];
    const part = cut(golden, this.placesOf(site));
    const visible = isWeights(site) ? this.tensors[this.entry.visible?.[layer]] : undefined;
    const seen = visible && cut(visible, [[this.row], this.positions, this.positions]).data;
    this.compare(name, got, part, (at) => seen !== undefined && seen[at % seen.length] === 0);
  }

  async runForward() {
    const { model, entry, goldens } = this;
    const input = this.ids('input_ids');
    const captures = entry.captures ?? [];
    const { logits, lastHiddenState, captures: found } = await model.run(input, { capture: captures, edits: this.editsOf(entry.edits) });
    captures.forEach((capture, at) => this.compareSite(`${capture.site}.${capture.layer}`, capture, found[at].data));
    for (const [name, got] of Object.entries({ logits, last_hidden_state: lastHiddenState })) {
      if (goldens[name] !== undefined) this.compare(name, got.data, cut(goldens[name], this.placesOf('resid_post')));
    }
  }

  get metric() {
    const { position, token_a: token, token_b: against } = this.entry.metric;
    return { position, token, against };
  }

  async run() {
    const { model, entry } = this;
    switch (entry.op) {
      case 'captures':
      case 'edits':
        return this.runForward();
      case 'lens': {
        const { logits } = await model.lens(this.ids('input_ids'), { layers: entry.layers, logits: true });
        return this.compare('lens', logits.data);
      }
      case 'patch':
        for (const [site, by] of [
          ['z', 'head'],
          ['resid_pre', 'position'],
        ]) {
          const { clean, corrupt, values } = await model.patch(this.ids('clean_ids'), this.ids('corrupt_ids'), this.metric, { site, by });
          this.compare(site, values.data);
          this.compare('clean', [clean]);
          this.compare('corrupt', [corrupt]);
        }
        return undefined;
      case 'attribution': {
        for (const [site, by, positions] of [
          ['z', 'head', true],
          ['resid_pre', 'position', false],
        ]) {
          const { values } = await model.attributionPatch(this.ids('clean_ids'), this.ids('corrupt_ids'), this.metric, { site, by, positions });
          this.compare(site, values.data);
        }
        const gradients = await model.gradients(this.ids('clean_ids'), this.metric, entry.gradients);
        return entry.gradients.forEach((place, at) => this.compareSite(`gradient.${place.site}.${place.layer}`, place, gradients[at].data));
      }
      case 'logit_attribution': {
        const { heads, mlp, embedding, rest, metric } = await model.logitAttribution(this.ids('input_ids'), this.metric);
        for (const [name, got] of Object.entries({ heads: heads.data, mlp, embedding: [embedding], rest: [rest], metric: [metric] }))
          this.compare(name, got);
        return undefined;
      }
      default:
        throw new NotSupported(`op ${entry.op}`);
    }
  }
}

/** Throws unless all outputs of the case are near the golden ones. */
export async function runLensCase(model, entry, tensors) {
  const rows = (entry.input_ids ?? entry.clean_ids).length;
  for (let row = 0; row < rows; row += 1) {
    const one = new LensCase(model, entry, tensors, row);
    await one.run();
    const missing = Object.keys(entry.outputs).find((name) => !one.compared?.includes(name));
    if (missing !== undefined) throw new NotSupported(`output ${missing}`);
  }
}
