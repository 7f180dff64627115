// Stored types, in the order of DType. Halves are widened and rounded as integers: drivers may
// flush subnormal f16, and there is no bf16.
const F32 = 0u;
const F16 = 1u;

fn half_of(h: u32, dtype: u32) -> f32 {
  if (dtype != F16) { return bitcast<f32>(h << 16u); }
  let e = (h >> 10u) & 0x1fu;
  let m = h & 0x3ffu;
  let sign = (h & 0x8000u) << 16u;
  if (e == 0u) {
    let x = f32(m) * 5.9604645e-8; // 2^-24
    return select(x, -x, sign != 0u);
  }
  return bitcast<f32>(sign | (select(e + 112u, 255u, e == 31u) << 23u) | (m << 13u));
}

fn four_halves(w: vec2u, dtype: u32) -> vec4f {
  return vec4f(half_of(w.x & 0xffffu, dtype), half_of(w.x >> 16u, dtype), half_of(w.y & 0xffffu, dtype), half_of(w.y >> 16u, dtype));
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
