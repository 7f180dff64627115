// Scores of queries and keys: steps 2 to 5 at the head of multihead/attention.h.
//#include load.wgsl x=q width=p.dk at=1 halves=NO
//#include load.wgsl x=k width=p.dk at=2 halves=HALVES
@group(0) @binding(4) var<storage, read> data: array<u32>;
@group(0) @binding(5) var<storage, read> mask: array<u32>;
@group(0) @binding(6) var<storage, read> bias: array<u32>;

fn q_row(e: Entry, b: u32, h: u32, i: u32) -> u32 { return b * p.q.x + h * p.q.y + (e.first_query + i) * p.q.z; }
// The row that stores key j.
fn stored(e: Entry, b: u32, j: u32) -> u32 {
  if (p.ring != 0u) { return j % p.ring; }
  if (p.page_size != 0u) { return data[p.pages + b * p.entry_pages + j / p.page_size] * p.page_size + j % p.page_size; }
  return e.first_key + j;
}
fn k_row(e: Entry, b: u32, g: u32, j: u32) -> u32 { return b * p.k.x + g * p.k.y + stored(e, b, j) * p.k.z; }

// tanh(100) is NaN on SwiftShader.
fn capped(s: f32) -> f32 {
  if (p.softcap == 0.0 || is_nan(bitcast<u32>(s))) { return s; }
  return p.softcap * tanh(clamp(s / p.softcap, -20.0, 20.0));
}

struct Score { value: f32, visible: bool }
fn score(e: Entry, b: u32, h: u32, i: u32, j: u32, product: f32, in_range: bool) -> Score {
  var s = Score(product * p.score_scale, in_range);
  s.value = capped(s.value);
  if (!s.visible) { return s; }
  if (p.slopes != NONE) { s.value -= bitcast<f32>(data[p.slopes + h]) * f32(abs(i32(i) + e.alibi - i32(j))); }
  if ((p.given & 2u) != 0u) {
    let bits = bias[b * p.bias.x + h * p.bias.y + i * p.bias.z + j * p.bias.w];
    s.visible = bits != MINUS_INFINITY;
    s.value += bitcast<f32>(bits);
  }
  if ((p.given & 1u) != 0u) {
    let at = b * p.mask.x + h * p.mask.y + i * p.mask.z + j * p.mask.w;
    s.visible = s.visible && ((mask[at >> 2u] >> ((at & 3u) * 8u)) & 0xffu) != 0u;
  }
  return s;
}

// The score, where -infinity is the lowest float, and the next maximum of its row.
fn finite(s: f32) -> f32 { return select(s, LOWEST, bitcast<u32>(s) == MINUS_INFINITY); }
fn raised(top: f32, s: Score) -> f32 {
  if (!s.visible || is_odd(bitcast<u32>(s.value))) { return top; }
  return max(top, s.value);
}
// The weight of a visible key before it is divided.
fn weight(s: f32, top: f32) -> f32 {
  if (is_odd(bitcast<u32>(s))) { return bitcast<f32>(bitcast<u32>(s) | NOT_A_NUMBER); }
  return exponential(s - top);
}
