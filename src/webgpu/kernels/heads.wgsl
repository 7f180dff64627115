// Queries, keys and values before attention: clamped; then for q and k RMS norm of each head and
// rotary embedding by tables of cosines and sines, in either order. A workgroup for each head of
// each token: those of q, of k, of v, which become three arrays (tokens, heads, width) in y.
//#params HeadsBlock
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> vectors: array<f32>;
@group(0) @binding(3) var<storage, read> tables: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
var<workgroup> head: array<f32, 1024>;
var<workgroup> part: array<f32, 64>;
//#include total.wgsl type=f32

fn normalize(t: u32, gain: u32) {
  var squares = 0.0;
  for (var c = t; c < p.width; c += 64u) { squares += head[c] * head[c]; }
  let factor = inverseSqrt(total(t, squares) / f32(p.width) + p.eps);
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

//#include main.wgsl
  let heads = p.q.z + p.k.z + p.v.z;
  if (index >= p.tokens * heads) { return; }
  let token = index / heads;
  let h = index % heads;
  let of_q = h < p.q.z;
  let of_v = h >= p.q.z + p.k.z;
  let place = select(select(p.k, p.q, of_q), p.v, of_v);
  let gain = select(select(p.k_gain, p.q_gain, of_q), NONE, of_v);
  let at = h - select(select(p.q.z, 0u, of_q), p.q.z + p.k.z, of_v);
  let first = p.x_first + token * p.x_stride + place.x + at * place.y;
  let to = place.w + (token * place.z + at) * p.width;
  for (var c = t; c < p.width; c += 64u) {
    let value = x[first + c];
    head[c] = select(value, clamp(value, -p.most, p.most), p.most != 0.0);
  }
  workgroupBarrier();
  if (p.norm_last == 0u && gain != NONE) { normalize(t, gain); }
  if (p.pairs != 0u && !of_v) { rotate(t, token); }
  if (p.norm_last != 0u && gain != NONE) { normalize(t, gain); }
  for (var c = t; c < p.width; c += 64u) { y[to + c] = head[c]; }
}
