// Weights of type TYPE (WeightType's number): a row is whole vec4u, each with GROUPS times four
// columns. Scales of int8 and int4 are halves, one for 32 columns.
const GROUPS = select(select(select(1u, 2u, TYPE >= 1u), 4u, TYPE == 3u), 8u, TYPE == 4u);

// By integers: exact, also for subnormal halves, which a driver may flush.
fn halves(h: vec4u) -> vec4f {
  let bits = h & vec4u(0x7fffu);
  let small = vec4f(bits) * 5.9604645e-8;
  let large = bitcast<vec4f>((bits << vec4u(13u)) + vec4u(0x38000000u));
  let size = bitcast<vec4u>(select(large, small, bits < vec4u(0x400u)));
  return bitcast<vec4f>(size | ((h & vec4u(0x8000u)) << vec4u(16u)));
}

// Columns 4 j to 4 j + 3 of a unit, without their scale.
fn numbers_of(unit: vec4u, j: u32) -> vec4f {
  if (TYPE == 0u) { return bitcast<vec4f>(unit); }
  if (TYPE <= 2u) {
    let a = unit[2u * (j & 1u)];
    let b = unit[2u * (j & 1u) + 1u];
    if (TYPE == 2u) { return bitcast<vec4f>(vec4u(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u)); }
    return halves(vec4u(a & 0xffffu, a >> 16u, b & 0xffffu, b >> 16u));
  }
  let word = unit[j & 3u];
  if (TYPE == 3u) { return vec4f((vec4i(i32(word)) << vec4u(24u, 16u, 8u, 0u)) >> vec4u(24u)); }
  return vec4f((vec4u(word >> (4u * (j >> 2u))) >> vec4u(0u, 8u, 16u, 24u)) & vec4u(0xfu)) - 8.0;
}

fn scale_of(row: u32, unit: u32) -> f32 {
  if (TYPE < 3u) { return 1.0; }
  let block = select(unit, unit >> 1u, TYPE == 3u);
  let pair = scales[row * p.scale_words + (block >> 1u)];
  return halves(vec4u((pair >> (16u * (block & 1u))) & 0xffffu)).x;
}
