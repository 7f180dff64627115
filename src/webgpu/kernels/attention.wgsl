// What the kernels of attention share. Results must be right although WGSL lets drivers assume that
// there is no infinity and no NaN. So:
// - No step computes with -infinity. A key is visible or not, as a bool. A bias is read as bits,
//   which are compared with those of -infinity.
// - The running maximum begins at the lowest float; a row that sees no key has the sum 0.
// - exp2()'s argument is (s - m) * exponent: s * exponent alone may overflow. It has a lower limit.
// - A score that is NaN or +infinity is recognized by its bits. It makes its weight, and so the sum of
//   its row, NaN, and a row whose sum is NaN is written as bits.
//#params AttentionBlock
//#include halves.wgsl
const LOWEST = -3.4028234e38;
const LOG2E = 1.4426950408889634;
const MINUS_INFINITY = 0xff800000u;
const NOT_A_NUMBER = 0x7fc00000u;

// The sequence of a batch entry, and the keys that its queries see: query i those in
// [i + shift.x, i + shift.y) that are present. rules/visibility.h has made it.
struct Entry { first_query: u32, queries: u32, first_key: u32, present: vec2i, shift: vec2i, alibi: i32 }
fn entry_of(b: u32) -> Entry {
  let i = b * ENTRY_WORDS;
  return Entry(data[i], data[i + 1u], data[i + 2u], vec2i(i32(data[i + 3u]), i32(data[i + 4u])),
               vec2i(i32(data[i + 5u]), i32(data[i + 6u])), i32(data[i + 7u]));
}
fn seen_by(e: Entry, query: u32) -> vec2i {
  let at = i32(query) + e.shift;
  return vec2i(max(e.present.x, at.x), min(e.present.y, at.y));
}

fn is_odd(bits: u32) -> bool { return (bits & 0x7f800000u) == 0x7f800000u; } // NaN or an infinity
fn is_nan(bits: u32) -> bool { return (bits & 0x7fffffffu) > 0x7f800000u; }
fn exponential(difference: f32) -> f32 { return exp2(max(difference, p.least) * p.exponent); }

// The place of a row's words in arrays of maxima and sums, and of partial results.
fn row_index(b: u32, g: u32, row: u32) -> u32 { return (b * p.kv_heads + g) * p.rows + row; }

// The denominator of a row, with its head's sink.
fn denominator(h: u32, m: f32, sum: f32) -> f32 {
  if (p.sinks == NONE || sum == 0.0) { return sum; }
  let sink = bitcast<f32>(data[p.sinks + h]);
  return sum + exp2(clamp((sink - m * p.softmax_scale) * LOG2E, -150.0, 126.0));
}
fn lse_of(h: u32, m: f32, sum: f32) -> u32 {
  if (is_nan(bitcast<u32>(sum))) { return NOT_A_NUMBER; }
  var sink = LOWEST;
  if (p.sinks != NONE) { sink = bitcast<f32>(data[p.sinks + h]); }
  if (sum == 0.0) { return select(bitcast<u32>(sink), MINUS_INFINITY, p.sinks == NONE); }
  let top = m * p.softmax_scale;
  if (sink - top > 60.0) { return bitcast<u32>(sink); } // the keys' share is below a rounding
  return bitcast<u32>(top + log(denominator(h, m, sum)));
}
