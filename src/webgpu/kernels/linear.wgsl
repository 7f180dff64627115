// What both products share. TAIL: a row of W has columns behind its last one, or x has not whole
// vec4f.
//#params LinearBlock
@group(0) @binding(1) var<storage, read> x: array<vec4f>;
@group(0) @binding(2) var<storage, read> numbers: array<vec4u>;
@group(0) @binding(3) var<storage, read> scales: array<u32>;
@group(0) @binding(4) var<storage, read> vectors: array<vec4f>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;
//#include numbers.wgsl
//#include functions.wgsl

fn exists(c: u32) -> vec4<bool> { return vec4u(4u * c) + vec4u(0u, 1u, 2u, 3u) < vec4u(p.columns); }

// Four columns of a row of x; rows behind the last one repeat it.
fn raw_x(row: u32, c: u32) -> vec4f {
  let at = (p.x_first + min(row, p.rows - 1u) * p.x_stride) / 4u + c;
  if (TAIL == 0u) { return x[at]; }
  if (4u * c >= p.columns) { return vec4f(); }
  return select(vec4f(), x[at], exists(c));
}

fn finished(sum: f32, output: u32) -> f32 {
  var value = sum;
  if (p.bias != NONE) { value += vectors[(p.bias + output) / 4u][(p.bias + output) % 4u]; }
  value *= p.factor;
  if (p.cap == 0.0) { return value; }
  return p.cap * tanh_of(value / p.cap);
}

fn write(at: u32, value: f32) { y[at] = select(value, y[at] + value, p.adds != 0u); }
