// Queries, keys and values before attention: clamped; then for q and k RMS norm of each head and
// rotary embedding by tables of cosines and sines, in either order. A workgroup for each head of
// each token: those of q, of k, of v, which become three arrays (tokens, heads, width) in y.
//#params HeadsBlock
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> vectors: array<f32>;
@group(0) @binding(3) var<storage, read> tables: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
const NONE = 0xffffffffu;
var<workgroup> head: array<f32, 1024>;
var<workgroup> sums: array<f32, 64>;

fn normalize(t: u32, gain: u32) {
  var squares = 0.0;
  for (var c = t; c < p.width; c += 64u) { squares += head[c] * head[c]; }
  sums[t] = squares;
  for (var step = 32u; step > 0u; step >>= 1u) {
    workgroupBarrier();
    if (t < step) { sums[t] += sums[t + step]; }
  }
  workgroupBarrier();
  let factor = inverseSqrt(sums[0] / f32(p.width) + p.eps);
  for (var c = t; c < p.width; c += 64u) { head[c] *= factor * vectors[gain + c]; }
  workgroupBarrier();
}

fn rotate(t: u32, token: u32) {
  let row = token % p.sequence * p.table_stride;
  for (var i = t; i < p.pairs; i += 64u) {
    let a = select(i, 2u * i, p.neighbours != 0u);
    let b = select(i + p.pairs, 2u * i + 1u, p.neighbours != 0u);
    let c = tables[p.cos_first + row + i];
    let s = tables[p.sin_first + row + i];
    let va = head[a];
    let vb = head[b];
    head[a] = va * c - vb * s;
    head[b] = vb * c + va * s;
  }
  workgroupBarrier();
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) n: vec3u, @builtin(local_invocation_index) t: u32) {
  let heads = p.q_heads + 2u * p.k_heads;
  let row = w.y * n.x + w.x;
  if (row >= p.tokens * heads) { return; }
  let token = row / heads;
  let h = row % heads;
  // First head and next head in x, heads, first word in y, gain: of q, k or v.
  var part = array<u32, 5>(p.q_first, p.q_step, p.q_heads, p.q_out, p.q_gain);
  var at = h;
  if (h >= p.q_heads) {
    part = array<u32, 5>(p.k_first, p.k_step, p.k_heads, p.k_out, p.k_gain);
    at = h - p.q_heads;
  }
  let of_v = h >= p.q_heads + p.k_heads;
  if (of_v) {
    part = array<u32, 5>(p.v_first, p.v_step, p.k_heads, p.v_out, NONE);
    at = h - p.q_heads - p.k_heads;
  }
  let first = token * p.x_stride + part[0] + at * part[1];
  let to = part[3] + (token * part[2] + at) * p.width;
  for (var c = t; c < p.width; c += 64u) {
    let value = x[first + c];
    head[c] = select(value, clamp(value, -p.most, p.most), p.most != 0.0);
  }
  workgroupBarrier();
  let gain = part[4];
  if (p.norm_last == 0u && gain != NONE) { normalize(t, gain); }
  if (p.pairs != 0u && !of_v) { rotate(t, token); }
  if (p.norm_last != 0u && gain != NONE) { normalize(t, gain); }
  for (var c = t; c < p.width; c += 64u) { y[to + c] = head[c]; }
}
