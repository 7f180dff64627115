// Multi-head attention in float64, straight from its definition. It shares no code with the page or the core; it takes
// only x and the weights from them.

const get = (data, cols, row, col) => data[row * cols + col];

/** x (rows, inner) times the transpose of w (outer, inner). */
function project(x, w, rows, inner, outer) {
  const y = new Float64Array(rows * outer);
  for (let r = 0; r < rows; r += 1) {
    for (let o = 0; o < outer; o += 1) {
      let sum = 0;
      for (let i = 0; i < inner; i += 1) sum += get(x, inner, r, i) * get(w, inner, o, i);
      y[r * outer + o] = sum;
    }
  }
  return y;
}

/** Splits (N, H·d) into heads: (H, N, d). */
function split(m, n, heads, d) {
  const out = new Float64Array(m.length);
  for (let h = 0; h < heads; h += 1) {
    for (let i = 0; i < n; i += 1) {
      for (let c = 0; c < d; c += 1) out[(h * n + i) * d + c] = m[i * heads * d + h * d + c];
    }
  }
  return out;
}

const nothingBent = { window: -1, temperature: 1, divisor: 'head', muted: [], withoutOutput: false, edits: [] };

/** Sets the weights that were edited by hand; the others fill the row up to 1 in proportion. */
function edit(row, set, visible) {
  const free = visible.filter((j) => !set.has(j));
  const given = visible.reduce((sum, j) => sum + (set.get(j) ?? 0), 0);
  const left = free.length > 0 && given < 1 ? 1 - given : 0;
  const rest = free.reduce((sum, j) => sum + row[j], 0);
  const total = left + given;
  const old = row.slice();
  row.fill(0);
  for (const j of visible) {
    if (total === 0) row[j] = 1 / visible.length;
    else if (set.has(j)) row[j] = set.get(j) / total;
    else row[j] = rest < 1e-6 ? left / free.length : (left * old[j]) / rest;
  }
}

/** Computes every step, by its name in the trace. */
export function reference({ x, n, embedDim, heads, headDim: d, causal, weights, bend = nothingBent }) {
  const { window, temperature, divisor, muted, withoutOutput, edits } = bend;
  const wide = heads * d;
  const q = project(x, weights.qProj, n, embedDim, wide);
  const k = project(x, weights.kProj, n, embedDim, wide);
  const v = project(x, weights.vProj, n, embedDim, wide);
  const [qHeads, kHeads, vHeads] = [q, k, v].map((m) => split(m, n, heads, d));
  const [scores, scaledScores, maskedScores, shares] = Array.from({ length: 4 }, () => new Float64Array(heads * n * n));
  const headsOut = new Float64Array(heads * n * d);
  const merged = new Float64Array(n * wide);
  const scale = { head: 1 / Math.sqrt(d), model: 1 / Math.sqrt(embedDim), none: 1 }[divisor] / temperature;
  const seesKey = (i, j) => !(causal && j > i) && !(window >= 0 && Math.abs(j - i) > window);
  for (let h = 0; h < heads; h += 1) {
    for (let i = 0; i < n; i += 1) {
      const row = (h * n + i) * n;
      for (let j = 0; j < n; j += 1) {
        for (let c = 0; c < d; c += 1) scores[row + j] += qHeads[(h * n + i) * d + c] * kHeads[(h * n + j) * d + c];
        scaledScores[row + j] = scores[row + j] * scale;
        maskedScores[row + j] = seesKey(i, j) ? scaledScores[row + j] : -Infinity;
      }
      const seen = maskedScores.subarray(row, row + n);
      const top = Math.max(...seen);
      const total = seen.reduce((sum, score) => sum + Math.exp(score - top), 0);
      const own = shares.subarray(row, row + n);
      for (let j = 0; j < n; j += 1) own[j] = Math.exp(seen[j] - top) / total;
      const visible = Array.from({ length: n }, (_, j) => j).filter((j) => seesKey(i, j));
      const set = new Map(
        edits.filter(({ head, query, key }) => head === h && query === i && visible.includes(key)).map(({ key, weight }) => [key, weight]),
      );
      if (set.size > 0) edit(own, set, visible);
      for (let c = 0; c < d; c += 1) {
        for (let j = 0; j < n; j += 1) headsOut[(h * n + i) * d + c] += own[j] * vHeads[(h * n + j) * d + c];
        merged[i * wide + h * d + c] = muted.includes(h) ? 0 : headsOut[(h * n + i) * d + c];
      }
    }
  }
  const output = withoutOutput ? merged : project(merged, weights.outProj, n, wide, embedDim);
  return {
    x,
    q,
    k,
    v,
    qHeads,
    kHeads,
    vHeads,
    scores,
    scaledScores,
    maskedScores,
    weights: shares,
    headsOut,
    merged,
    output,
  };
}
