// Stored types, in the order of DType. Halves are widened as integers: drivers may flush subnormal f16,
// and there is no bf16.
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
