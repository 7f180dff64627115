// Joins the splits of decode.wgsl, and makes LSE of maxima and sums. Grid: row, batch entry and
// key/value head.
//#include attention.wgsl
@group(0) @binding(1) var<storage, read> partials: array<u32>;
@group(0) @binding(2) var<storage, read> data: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<u32>;
@group(0) @binding(4) var<storage, read_write> lse: array<u32>;
@group(0) @binding(5) var<storage, read_write> totals: array<u32>;

// By what the results of a split are multiplied.
fn share(at: u32, top: f32) -> f32 { return exponential(bitcast<f32>(partials[at]) - top); }

//#include main.wgsl
  let head = index / p.rows;
  let row = index % p.rows;
  if (head >= p.batch * p.kv_heads) { return; }
  let b = head / p.kv_heads;
  let g = head % p.kv_heads;
  let e = entry_of(b);
  if (row < p.first_row || row >= e.queries * p.group) { return; }
  let i = row / p.group;
  let h = g * p.group + row % p.group;
  let width = (p.dv + 3u) / 4u * 4u + 2u;
  let first = row_index(b, g, row) * p.splits * width;
  var top = LOWEST;
  for (var s = 0u; s < p.splits; s++) { top = max(top, bitcast<f32>(partials[first + s * width])); }
  var sum = 0.0;
  for (var s = 0u; s < p.splits; s++) { sum += bitcast<f32>(partials[first + s * width + 1u]) * share(first + s * width, top); }
  let below = denominator(h, top, sum);
  for (var c = t; c < p.dv; c += 64u) {
    var x = 0.0;
    for (var s = 0u; s < p.splits; s++) { x += bitcast<f32>(partials[first + s * width + 2u + c]) * share(first + s * width, top); }
    var bits = 0u;
    if (sum != 0.0) { bits = bitcast<u32>(x / below); }
    if (is_nan(bitcast<u32>(sum))) { bits = NOT_A_NUMBER; }
    out[b * p.out.x + h * p.out.y + (e.first_query + i) * p.out.z + c] = bits;
  }
  if (t == 0u) {
    lse[b * p.lse.x + h * p.lse.y + (e.first_query + i) * p.lse.z] = lse_of(h, top, sum);
    if (p.lse.w != 0u) {
      totals[2u * row_index(b, g, row)] = bitcast<u32>(top);
      totals[2u * row_index(b, g, row) + 1u] = bitcast<u32>(sum);
    }
  }
}
