// Rows of $x, which are FLOATS (f32, every row begins at a multiple of 16 bytes), $halves (f16 or
// bf16, at a multiple of 8), or of any type and strides.
//#if FLOATS
//#if $halves
@group(0) @binding($at) var<storage, read> $x: array<vec2u>;
fn load_$x(row: u32, c: u32) -> vec4f { return four_halves($x[(row >> 2u) + c], p.$x.w); }
//#else
@group(0) @binding($at) var<storage, read> $x: array<vec4f>;
fn load_$x(row: u32, c: u32) -> vec4f { return $x[(row >> 2u) + c]; }
//#end
//#else
@group(0) @binding($at) var<storage, read> $x: array<u32>;
fn $x_at(i: u32) -> f32 {
  if (p.$x.w == F32) { return bitcast<f32>($x[i]); }
  return half_of(($x[i >> 1u] >> ((i & 1u) * 16u)) & 0xffffu, p.$x.w);
}
// vec4 number c of the row that begins at element `row`, filled up with zeros.
fn load_$x(row: u32, c: u32) -> vec4f {
  var x = vec4f();
  let i = row + 4u * c;
  let n = $width - min(4u * c, $width);
  if (n > 0u) { x.x = $x_at(i); }
  if (n > 1u) { x.y = $x_at(i + 1u); }
  if (n > 2u) { x.z = $x_at(i + 2u); }
  if (n > 3u) { x.w = $x_at(i + 3u); }
  return x;
}
//#end
