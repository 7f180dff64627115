// constants: FLOATS HALVES
// Scores or weights of chosen heads and rows (ScoreCapture), one invocation for each. Weights are made
// of each row's maximum and sum; the LSE would lose the logarithm of the sum beside a score of -3.4e38.
// Grid: 64 keys, row, head, batch entry.
//#include attention.wgsl
//#include scored.wgsl
@group(0) @binding(3) var<storage, read> totals: array<u32>;
@group(0) @binding(7) var<storage, read_write> out: array<u32>;

//#include main.wgsl
  let j = index % p.tiles * 64u + t;
  let row = index / p.tiles % p.out_rows;
  let place = index / p.tiles / p.out_rows % p.out_heads;
  let b = index / p.tiles / p.out_rows / p.out_heads;
  if (b >= p.batch || j >= p.keys) { return; }
  let e = entry_of(b);
  var h = place;
  if (p.chosen != NONE) { h = data[p.chosen + place]; }
  let g = h / p.group;
  let i = p.first_query + row;
  var bits = select(MINUS_INFINITY, 0u, p.stage == 3u);
  var m = 0.0;
  var sum = 1.0;
  if (p.stage == 3u) {
    let at = 2u * row_index(b, g, i * p.group + h % p.group);
    m = bitcast<f32>(totals[at]);
    sum = bitcast<f32>(totals[at + 1u]);
  }
  if (is_nan(bitcast<u32>(sum))) {
    bits = NOT_A_NUMBER; // of hidden keys, too
  } else if (i32(j) >= e.present.x && i32(j) < e.present.y) {
    var product = 0.0;
    let x = q_row(e, b, h, i);
    let y = k_row(e, b, g, j);
    for (var c = 0u; 4u * c < p.dk; c++) { product += dot(p.q_scale * load_q(x, c), load_k(y, c)); }
    if (p.stage == 0u) {
      bits = bitcast<u32>(product * p.score_scale * p.softmax_scale);
    } else if (p.stage == 1u) {
      bits = bitcast<u32>(capped(product * p.score_scale) * p.softmax_scale);
    } else {
      let seen = seen_by(e, i);
      let s = score(e, b, h, i, j, product, i32(j) >= seen.x && i32(j) < seen.y);
      if (s.visible && p.stage == 2u) { bits = bitcast<u32>(s.value * p.softmax_scale); }
      if (s.visible && p.stage == 3u) { bits = bitcast<u32>(weight(finite(s.value), m) / denominator(h, m, sum)); }
    }
  }
  out[b * p.out.x + place * p.out.y + row * p.out.z + j] = bits;
}
