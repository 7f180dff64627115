// Sums of values by weights that were edited, which need not be those of a softmax: an invocation an element.
//#params WeightedBlock
@group(0) @binding(1) var<storage, read> weights: array<f32>; // (batch, heads, tokens, tokens)
@group(0) @binding(2) var<storage, read> v: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) n: vec3u, @builtin(local_invocation_index) t: u32) {
  let i = (w.y * n.x + w.x) * 64u + t;
  let columns = p.heads * p.width;
  if (i >= p.rows * columns) { return; }
  let row = i / columns;
  let c = i % columns;
  let h = c / p.width;
  let b = row / p.tokens;
  let map = ((b * p.heads + h) * p.tokens + row % p.tokens) * p.tokens;
  let value = p.v_first + b * p.tokens * p.v_stride + h / p.group * p.width + c % p.width;
  var sum = 0.0;
  for (var j = 0u; j < p.tokens; j++) { sum += weights[map + j] * v[value + j * p.v_stride]; }
  y[p.y_first + row * p.y_stride + c] = sum;
}
