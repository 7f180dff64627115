// constants: PAIR
// Takes rows of any type, normalizes them (QK-norm), rotates them (RoPE), converts them and puts them
// into other places: queries and keys before attention, new tokens of a cache, halves as a result.
// PAIR: as many rows of x2 follow for y2, which are keys and values of a cache. Grid: row.
//#params RowsBlock
//#include halves.wgsl
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> data: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<atomic<u32>>; // halves of other rows may share a word
//#if PAIR
@group(0) @binding(4) var<storage, read> x2: array<u32>;
@group(0) @binding(5) var<storage, read_write> y2: array<atomic<u32>>;
//#end
const MOST = 256u; // numbers of a row
var<workgroup> row: array<f32, MOST>;
var<workgroup> part: array<f32, 64>;
//#include total.wgsl type=f32
var<workgroup> odd: atomic<u32>;

// The high word of the product.
fn high(a: u32, b: u32) -> u32 {
  let low = (a & 0xffffu) * (b & 0xffffu);
  let mid = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
  let other = (a & 0xffffu) * (b >> 16u) + (mid & 0xffffu);
  return (a >> 16u) * (b >> 16u) + (mid >> 16u) + (other >> 16u);
}

// Cosine and sine of a pair's angle. The angle is counted in turns of 64 bits, so its whole turns
// fall away exactly; sin() and cos() of WGSL may be off by 2^-11.
fn rotation(position: u32, pair: u32) -> vec2f {
  let low = data[p.turns + 2u * pair];
  var turn = position * data[p.turns + 2u * pair + 1u] + high(position, low);
  if (i32(position) < 0) { turn -= low; }
  let quarter = (turn + 0x20000000u) >> 30u;
  let r = f32(i32(turn - (quarter << 30u))) * 1.4629180792671596e-9; // 2 pi / 2^32; within pi / 4
  let s = r * r;
  let sine = r * (1.0 + s * (-0.16666667 + s * (0.008333333 + s * (-1.9841270e-4 + s * 2.7557319e-6))));
  let cosine = 1.0 + s * (-0.5 + s * (0.041666667 + s * (-0.0013888889 + s * 2.4801587e-5)));
  var result = vec2f(cosine, sine);
  if ((quarter & 1u) != 0u) { result = vec2f(-sine, cosine); }
  if ((quarter & 2u) != 0u) { result = -result; }
  return result;
}

// x shifted right by n, 1 to 31, rounded to nearest, ties to even.
fn rounded(x: u32, n: u32) -> u32 { return (x + (1u << (n - 1u)) - 1u + ((x >> n) & 1u)) >> n; }

// The bits of a float as those of a half.
fn half_bits(x: u32, dtype: u32) -> u32 {
  let size = x & 0x7fffffffu;
  let sign = (x >> 16u) & 0x8000u;
  if (dtype != F16) { return sign | select(rounded(size, 16u), 0x7fc0u, size > 0x7f800000u); }
  if (size > 0x7f800000u) { return sign | 0x7e00u; }
  if (size >= 0x477ff000u) { return sign | 0x7c00u; } // from 65520 on
  if (size >= 0x38800000u) { return sign | rounded(size - 0x38000000u, 13u); }
  if (size < 0x33000000u) { return sign; } // below half of the smallest
  return sign | rounded((size & 0x7fffffu) | 0x800000u, 126u - (size >> 23u));
}

fn word_of(second: bool, at: u32) -> u32 {
//#if PAIR
  if (second) { return x2[at]; }
//#end
  return x[at];
}

// Replaces the bits of a word that `kept` has not.
fn set_word(second: bool, at: u32, kept: u32, bits: u32) {
//#if PAIR
  if (second) {
    if (kept == 0u) { atomicStore(&y2[at], bits); return; }
    atomicAnd(&y2[at], kept);
    atomicOr(&y2[at], bits);
    return;
  }
//#end
  if (kept == 0u) { atomicStore(&y[at], bits); return; }
  atomicAnd(&y[at], kept);
  atomicOr(&y[at], bits);
}

//#include main.wgsl
  if (index >= p.count * (1u + PAIR)) { return; }
  let second = index >= p.count;
  let number = index % p.count;
  let source = select(p.x, p.x2, second);
  let place = select(p.y, p.y2, second);
  let width = select(p.width, p.width2, second);
  let i = number % p.rows;
  let h = number / p.rows % p.heads;
  let b = number / p.rows / p.heads;
  var to = i;
  if (p.targets != NONE) { to = data[p.targets + b * p.rows + i]; }
  if (to == NONE) { return; }
  let first = b * source.x + h * source.y + i * source.z;
  for (var c = t; c < width; c += 64u) {
    var bits = 0u;
    if (source.w == F32) { bits = word_of(second, first + c); } else { bits = bitcast<u32>(half_of((word_of(second, (first + c) >> 1u) >> (((first + c) & 1u) * 16u)) & 0xffffu, source.w)); }
    row[c] = bitcast<f32>(bits);
    if ((bits & 0x7f800000u) == 0x7f800000u) { atomicOr(&odd, 1u); }
  }
  workgroupBarrier();
  if (p.normalize != 0u) {
    var top = 0.0;
    for (var c = t; c < p.width; c += 64u) { top = max(top, abs(row[c])); }
    part[t] = top;
    workgroupBarrier();
    for (var k = 0u; k < 64u; k++) { top = max(top, part[k]); }
    workgroupBarrier();
    // Squares beyond the range of floats: the row is divided by its largest number before.
    var size = 1.0;
    if (top > 1e15 || (p.eps == 0.0 && top < 1e-15 && top > 0.0)) { size = top; }
    var sum = 0.0;
    for (var c = t; c < p.width; c += 64u) { sum += (row[c] / size) * (row[c] / size); }
    let f = 1.0 / sqrt(total(t, sum) / f32(p.width) + p.eps / size / size);
    for (var c = t; c < p.width; c += 64u) {
      var gain = 1.0;
      if (p.gain != NONE) { gain = bitcast<f32>(data[p.gain + c]); }
      row[c] = row[c] / size * f * gain;
      if (atomicLoad(&odd) != 0u) { row[c] = bitcast<f32>(bitcast<u32>(row[c]) | 0x7fc00000u); }
    }
    workgroupBarrier();
  }
  for (var pair = t; pair < p.pairs; pair += 64u) {
    var two = vec2u(pair, pair + p.pairs);
    if (p.interleaved != 0u) { two = vec2u(2u * pair, 2u * pair + 1u); }
    let turn = rotation(data[p.positions + b * p.position_stride + i], pair);
    let from_x = row[two.x];
    let from_y = row[two.y];
    row[two.x] = from_x * turn.x - from_y * turn.y;
    row[two.y] = from_x * turn.y + from_y * turn.x;
  }
  workgroupBarrier();
  let at = b * place.x + h * place.y + to * place.z;
  for (var c = t; c < width; c += 64u) {
    let bits = bitcast<u32>(row[c]);
    if (place.w == F32) {
      set_word(second, at + c, 0u, bits);
    } else {
      let shift = ((at + c) & 1u) * 16u;
      set_word(second, (at + c) >> 1u, ~(0xffffu << shift), half_bits(bits, place.w) << shift);
    }
  }
}
